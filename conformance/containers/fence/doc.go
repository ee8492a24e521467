// Package fence tests the packages fence and fenceredis on real databases.
package fence
