// Package mutate measures whether a package's tests notice faults: it plants deliberate faults in
// the package, one at a time, runs the package's own tests with each, and counts the faults
// that no test notices.
//
// All faults of a package are compiled into one test binary, each behind a switch that the
// environment variable MUTANT sets (mutant schemata: R. Untch, A. J. Offutt, M. J. Harrold,
// "Mutation analysis using mutant schemata", ISSTA 1993). So a package is built once, or
// twice where a fault is a dropped lock, which only the race detector can see. The sources
// on disk stay as they are: the go command reads the changed ones through -overlay.
//
// Faults are drawn with a seed from all places where one of the operators applies. Names of
// faults (Mutant.Name) say where they are without line numbers, so that results and the list
// of equivalent faults survive edits elsewhere in the file.
package mutate
