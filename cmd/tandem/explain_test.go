package main

import "testing"

// Without the id of a request nobody is asked, nor with more than was meant.
func TestExplain_WantsOneRequestOrAll(t *testing.T) {
	const one, both = "want the id of one request, or --all", "want the id of a request or --all, not both"
	for _, x := range []struct {
		args []string
		want string
	}{
		{nil, one}, {[]string{""}, one}, {[]string{"..."}, one}, {[]string{"req-1", "req-2"}, one}, {[]string{"req-1", "--all"}, both},
	} {
		out, err := run(t, append([]string{"explain", "--admin", "http://127.0.0.1:1"}, x.args...)...)
		if err == nil || err.Error() != x.want || out != "" {
			t.Errorf("%q: %v\n%s", x.args, err, out)
		}
	}
}
