// Package demand measures what clients ask for, by model and by lengths of requests: Meter
// counts them on arrival, whether or not they are served, and Sum adds up what several
// gateways measured. It is pure: the clock is given, and autoscale shares the readings. The
// simulators measure with it too.
package demand
