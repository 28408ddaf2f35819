package trigger

// StoredMatcher compiles a subscription as the tail does one that it reads.
var StoredMatcher = storedMatcher
