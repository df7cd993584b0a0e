// Package mix chooses how many servers of which hardware prefill and decode: the
// cheapest mix that meets the objectives of all classes of requests, within what
// there is. It is an integer programme, solved by branch and bound within a deadline;
// what is best so far counts when that is over.
//
//	Problem -> programme (problem.go) -> relaxed by dual simplex (tableau.go)
//	        -> branch and bound (branch.go) -> Mix
package mix
