-- Runs a script for one name.

return attempt(KEYS, ARGV)
