// Package config is what the things of a tenant that people configure must be,
// whoever saves them: a triggers.yaml or the API.
package config

// Limits of what a tenant has.
const (
	BotsMax          = 100
	HooksMax         = 100
	SubscriptionsMax = 1000
)

// ProviderGitHub is the only forge of this version.
const ProviderGitHub = "github"
