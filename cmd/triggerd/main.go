// Command triggerd runs durable board triggers: one replica of the server, and
// the tools around it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"
	_ "time/tzdata" // for machines and containers without zone files

	"github.com/alecthomas/kong"
)

// version is set by the build.
var version = "dev"

type cli struct {
	Serve   serveCmd   `cmd:"" help:"Run one replica of the server."`
	Demo    demoCmd    `cmd:"" help:"Watch real GitHub deliveries fire two triggers, from end to end."`
	Apply   applyCmd   `cmd:"" help:"Make a database agree with a triggers.yaml."`
	Tenants tenantsCmd `cmd:"" help:"Look at tenants."`
	Effects effectsCmd `cmd:"" help:"Look at effects, and decide about dead letters."`
	Subs    subsCmd    `cmd:"" help:"Look at subscriptions, explain them, pause and resume them."`
	Pause   pauseCmd   `cmd:"" help:"Hold up the launches of a bot, a tenant or the fleet."`
	Resume  resumeCmd  `cmd:"" help:"End a pause."`
	Pauses  pausesCmd  `cmd:"" help:"List which launches are paused; subs ls shows paused subscriptions."`
	Token   tokenCmd   `cmd:"" help:"Manage API tokens."`
	Schema  schemaCmd  `cmd:"" help:"Manage the database's indexes."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

const description = `Durable board triggers on MongoDB.

Every flag can be set by an environment variable, TRIGGERD_ and the flag's name
in capitals (--mongo-uri is TRIGGERD_MONGO_URI), but those that say what to do
to what; a flag on the command line wins. Secrets of bots and hooks are sealed with the key in TRIGGERD_SEAL_KEY, or
in the file that --seal-key-file names.`

// streams are where a command writes; tests read them.
type streams struct{ out, err io.Writer }

func main() { os.Exit(run(os.Args[1:], streams{os.Stdout, os.Stderr})) }

// credentials are those of a URI: the parser's errors repeat what is where it
// does not belong.
var credentials = regexp.MustCompile(`//[^\s"]*@`)

func run(args []string, std streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	return runContext(ctx, args, std)
}

// runContext runs a command until it is through, or ctx ends. It returns the
// exit code: 1, the command failed; 2, it was called wrongly.
func runContext(ctx context.Context, args []string, std streams) int {
	code := -1
	var c cli
	parser, err := kong.New(&c,
		kong.Name("triggerd"), kong.Description(description), kong.DefaultEnvars("TRIGGERD"),
		kong.Writers(std.out, std.err), kong.Exit(func(status int) { code = status }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(std),
	)
	if err != nil {
		fmt.Fprintln(std.err, "triggerd:", err)
		return 2
	}
	kctx, err := parser.Parse(args)
	if code >= 0 {
		return code // --help was printed
	}
	if err != nil {
		fmt.Fprintf(std.err, "triggerd: %s\nRun `triggerd --help` for the commands and flags.\n", credentials.ReplaceAllString(err.Error(), "//***@"))
		return 2
	}
	if err := kctx.Run(); err != nil {
		if !errors.Is(err, errSilent) {
			fmt.Fprintln(std.err, "triggerd:", strings.TrimSpace(err.Error()))
		}
		return 1
	}
	return 0
}

// errSilent fails a command that has said why itself.
var errSilent = errors.New("")

type versionCmd struct{}

func (versionCmd) Run(std streams) error {
	rev := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				rev = " " + s.Value
			}
		}
		rev += " " + info.GoVersion
	}
	_, err := fmt.Fprintf(std.out, "triggerd %s%s\n", version, rev)
	return err
}
