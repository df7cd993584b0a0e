package main

import (
	"strings"
	"testing"
)

func TestDocs_AreCurrent(t *testing.T) {
	var out strings.Builder
	if err := docs("../../docs", true, &out); err != nil {
		t.Error(err)
	}
}
