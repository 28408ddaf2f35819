// Package config is what the things of a tenant that people configure must be,
// whoever saves them: a triggers.yaml or the API.
package config

// Limits of what a tenant has, and of its parts.
const (
	BotsMax          = 100  // per tenant
	HooksMax         = 100  // per tenant
	SubscriptionsMax = 1000 // per tenant
)

// ProviderGitHub is the only forge of this version.
const ProviderGitHub = "github"
