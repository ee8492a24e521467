// Package fence runs fencing in the resource, of packages fence and fenceredis, on real databases.
package fence
