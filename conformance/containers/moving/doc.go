// Package moving tests clients that lock on two backends, and fleets that move from one to the
// other, on real servers.
package moving
