package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/internal/testdb"
)

func deployFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/" + name)
	require.NoError(t, err)
	return string(text)
}

// parsedServe has the command line read the arguments of a serve.
func parsedServe(t *testing.T, args []string) serveCmd {
	t.Helper()
	var c cli
	parser, err := kong.New(&c, kong.Name("triggerd"), kong.DefaultEnvars("TRIGGERD"))
	require.NoError(t, err)
	ctx, err := parser.Parse(args)
	require.NoError(t, err, args)
	require.Equal(t, "serve", ctx.Command())
	require.NoError(t, c.Serve.check(), args)
	return c.Serve
}

// isVariable holds that a variable is one that serve reads.
func isVariable(t *testing.T, name string) {
	t.Helper()
	var c cli
	parser, err := kong.New(&c, kong.Name("triggerd"), kong.DefaultEnvars("TRIGGERD"))
	require.NoError(t, err)
	names := []string{"TRIGGERD_SEAL_KEY"}
	for _, leaf := range parser.Model.Leaves(true) {
		if leaf.Name == "serve" {
			for _, f := range leaf.Flags {
				names = append(names, f.Envs...)
			}
		}
	}
	require.Contains(t, names, name)
}

func TestCompose(t *testing.T) {
	t.Parallel()
	type service struct {
		Image       string            `yaml:"image"`
		Command     []string          `yaml:"command"`
		Environment map[string]string `yaml:"environment"`
		Restart     string            `yaml:"restart"`
		Volumes     []string          `yaml:"volumes"`
		Ports       []string          `yaml:"ports"`
		StopGrace   string            `yaml:"stop_grace_period"`
		Build       struct {
			Context    string `yaml:"context"`
			Dockerfile string `yaml:"dockerfile"`
		} `yaml:"build"`
		Deploy struct {
			Replicas int `yaml:"replicas"`
		} `yaml:"deploy"`
		DependsOn map[string]struct {
			Condition string `yaml:"condition"`
		} `yaml:"depends_on"`
		Healthcheck struct {
			Test []string `yaml:"test"`
		} `yaml:"healthcheck"`
	}
	var file struct {
		Services map[string]service `yaml:"services"`
		Volumes  map[string]any     `yaml:"volumes"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(deployFile(t, "compose.yaml")), &file))
	mongo, triggerd := file.Services["mongo"], file.Services["triggerd"]
	require.Len(t, file.Services, 2)

	require.Equal(t, "mongo:8", mongo.Image)
	require.Empty(t, mongo.Ports, "it has no password")
	require.Contains(t, mongo.Healthcheck.Test[4], "rs.initiate")
	volume, _, _ := strings.Cut(mongo.Volumes[0], ":")
	require.Contains(t, file.Volumes, volume)

	serve := parsedServe(t, triggerd.Command)
	require.Equal(t, "0.0.0.0:8080", serve.Listen)
	for name := range triggerd.Environment {
		isVariable(t, name)
	}
	require.Contains(t, triggerd.Environment, "TRIGGERD_MONGO_URI")
	require.Contains(t, triggerd.Environment["TRIGGERD_SEAL_KEY"], ":?", "without a key it does not start")
	set := find(t, triggerd.Environment["TRIGGERD_MONGO_URI"], `replicaSet=(\w+)`)
	require.Contains(t, mongo.Command, set)
	require.Equal(t, 2, triggerd.Deploy.Replicas)
	require.Equal(t, []string{"127.0.0.1:8081-8082:8080"}, triggerd.Ports)
	require.Equal(t, "service_healthy", triggerd.DependsOn["mongo"].Condition)
	grace, err := time.ParseDuration(triggerd.StopGrace)
	require.NoError(t, err)
	require.Greater(t, grace, 2*serve.Grace)
	for _, s := range file.Services {
		require.Equal(t, "unless-stopped", s.Restart)
	}
	root, err := testdb.Root()
	require.NoError(t, err)
	require.Equal(t, root, filepath.Join(root, "deploy", triggerd.Build.Context))
	require.FileExists(t, filepath.Join(root, triggerd.Build.Dockerfile))
}

func TestUnit(t *testing.T) {
	t.Parallel()
	unit := make(map[string][]string)
	for line := range strings.Lines(deployFile(t, "triggerd.service")) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || regexp.MustCompile(`^\[\w+\]$`).MatchString(line) {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		require.True(t, ok, line)
		unit[key] = append(unit[key], value)
	}
	one := func(key string) string {
		require.Len(t, unit[key], 1, key)
		return unit[key][0]
	}
	args := words(one("ExecStart"))
	require.Equal(t, "/usr/local/bin/triggerd", args[0])
	serve := parsedServe(t, args[1:])
	credential, _, _ := strings.Cut(one("LoadCredential"), ":")
	require.Equal(t, "${CREDENTIALS_DIRECTORY}/"+credential, serve.SealKeyFile)
	stop, err := time.ParseDuration(one("TimeoutStopSec"))
	require.NoError(t, err)
	require.Greater(t, stop, 2*serve.Grace)
	for key, value := range map[string]string{
		"Restart": "on-failure", "DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "",
	} {
		require.Equal(t, value, one(key), key)
	}
}
