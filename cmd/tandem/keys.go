package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/gateway/access"
)

func keysCommand() *cobra.Command {
	keys := &cobra.Command{
		Use:   "keys",
		Short: "Make entries for the file of API keys (serve --keys-file)",
		Long: `Make entries for the file of API keys (serve --keys-file). They stand below a secret, by
which tenants' caches are kept apart, and "keys:":

  echo "secret: $(openssl rand -hex 32)" > keys.yaml; echo "keys:" >> keys.yaml
  tandem keys new --tenant ada >> keys.yaml`,
	}
	var tenant string
	hash := &cobra.Command{
		Use:   "hash",
		Short: "Print the entry of a key that is read from standard input",
		Long: `Print the entry of a key that is read from standard input, one line. The file holds
only the key's SHA-256; the key itself is not printed.`,
		Example: "  tandem keys hash --tenant ada < key.txt >> keys.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f, ok := cmd.InOrStdin().(*os.File); ok && isatty.IsTerminal(f.Fd()) {
				fmt.Fprint(cmd.ErrOrStderr(), "key: ")
			}
			key, err := readKey(cmd.InOrStdin())
			if err != nil {
				return err
			}
			return printEntry(cmd.OutOrStdout(), key, tenant)
		},
	}
	create := &cobra.Command{
		Use:     "new",
		Short:   "Make a key: print it to standard error, and its entry to standard output",
		Example: "  tandem keys new --tenant ada >> keys.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			key := "sk-" + rand.Text() + rand.Text() // 256 bits, most of them
			fmt.Fprintf(cmd.ErrOrStderr(), "key, shown only now: %s\n", key)
			return printEntry(cmd.OutOrStdout(), key, tenant)
		},
	}
	for _, c := range []*cobra.Command{hash, create} {
		c.Flags().StringVar(&tenant, "tenant", "", "`name` of the key's tenant")
		_ = c.MarkFlagRequired("tenant") // it is a flag: that line above made it
		keys.AddCommand(c)
	}
	return keys
}

// maxKey bounds a key, in bytes: it must fit into a header.
const maxKey = 4096

func readKey(in io.Reader) (string, error) {
	content, err := io.ReadAll(io.LimitReader(in, maxKey))
	if err != nil {
		return "", fmt.Errorf("read the key: %w", err)
	}
	line, rest, _ := strings.Cut(string(content), "\n")
	key := strings.TrimSpace(line)
	if key == "" || strings.TrimSpace(rest) != "" {
		return "", errors.New("want one key on one line")
	}
	return key, nil
}

func printEntry(out io.Writer, key, tenant string) error {
	_, err := fmt.Fprintf(out, "  - sha256: %s\n    tenant: %q\n", access.Hash(key), tenant)
	return err
}
