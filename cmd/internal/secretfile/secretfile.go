// Package secretfile reads a secret, such as a token or a password, from the file that a setting names.
package secretfile

import (
	"fmt"
	"os"
	"strings"
)

// Read returns what is in the file without the space around it, "" where the setting names no file.
func Read(setting, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", setting, err)
	}
	return strings.TrimSpace(string(content)), nil
}

// ReadFilled is Read of a file in which there must be something: one that is empty would open what it
// is to close.
func ReadFilled(setting, file string) (string, error) {
	secret, err := Read(setting, file)
	if err == nil && file != "" && secret == "" {
		return "", fmt.Errorf("%s: %s is empty", setting, file)
	}
	return secret, err
}
