// Command triggerd runs durable board triggers: one replica of the server, and
// the tools around it.
package main

import (
	"context"
	"errors"
	"fmt"
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

// The exit codes. docs/cli.md tells of them.
const (
	exitDone = iota
	exitFailed
	exitDiffers
	_
	exitMissing
	exitUsage = 64 // EX_USAGE of sysexits.h
)

type cli struct {
	Serve       serveCmd       `cmd:"" help:"Run one replica of the server."`
	Demo        demoCmd        `cmd:"" help:"Watch real GitHub deliveries fire two triggers, from end to end."`
	Apply       applyCmd       `cmd:"" help:"Make what there is agree with a triggers.yaml."`
	Export      exportCmd      `cmd:"" help:"Write the triggers.yaml of what there is, without secrets."`
	Tenants     tenantsCmd     `cmd:"" help:"Look at tenants."`
	Boards      boardsCmd      `cmd:"" help:"Manage boards."`
	Cards       cardsCmd       `cmd:"" help:"Manage cards: move, label, assign, comment."`
	Bots        botsCmd        `cmd:"" help:"Manage bots, and rotate their secrets."`
	Hooks       hooksCmd       `cmd:"" help:"Manage hooks, and rotate their secrets."`
	Projections projectionsCmd `cmd:"" help:"Manage projections."`
	Events      eventsCmd      `cmd:"" help:"Look at the log."`
	Effects     effectsCmd     `cmd:"" help:"Look at effects, and decide about dead letters."`
	Subs        subsCmd        `cmd:"" help:"Manage subscriptions, explain them, pause and resume them."`
	Pause       pauseCmd       `cmd:"" help:"Hold up the launches of a bot, a tenant or the fleet."`
	Resume      resumeCmd      `cmd:"" help:"End a pause."`
	Pauses      pausesCmd      `cmd:"" help:"List which launches are paused; subs ls shows paused subscriptions."`
	Tokens      tokensCmd      `cmd:"" aliases:"token" help:"Manage API tokens."`
	Audit       auditCmd       `cmd:"" help:"Look at who changed what."`
	Schema      schemaCmd      `cmd:"" help:"Manage the database's indexes."`
	Bench       benchCmd       `cmd:"" help:"Measure the engine on this machine, beside one that works a row at a time."`
	BenchGrowth benchGrowthCmd `cmd:"" help:"Measure what history, backlogs, idle tenants and pending rows cost."`
	Version     versionCmd     `cmd:"" help:"Print the version."`
}

const description = `Durable board triggers on MongoDB.

Commands work against a server (TRIGGERD_URL, and a token in TRIGGERD_TOKEN), or
on a database (TRIGGERD_MONGO_URI).

Every flag can be set by an environment variable, TRIGGERD_ and the flag's name
in capitals (--mongo-uri is TRIGGERD_MONGO_URI), but those that say what to do
to what; a flag on the command line wins. Secrets of bots and hooks are sealed with the key in TRIGGERD_SEAL_KEY, or
in the file that --seal-key-file names.

Exit codes: 0, done; 1, failed or refused; 2, apply --check found a difference;
4, what was named is not there; 64, the command line could not be read.`

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
// exit code.
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
		return exitUsage
	}
	kctx, err := parser.Parse(args)
	if code >= 0 {
		return code // --help was printed
	}
	if err != nil {
		fmt.Fprintf(std.err, "triggerd: %s\nRun `triggerd --help` for the commands and flags.\n", plainLines(credentials.ReplaceAllString(err.Error(), "//***@")))
		return exitUsage
	}
	err = kctx.Run()
	if err != nil && !errors.Is(err, errSilent) && !errors.Is(err, errDiffers) {
		fmt.Fprintln(std.err, "triggerd:", plainLines(strings.TrimSpace(advice(flagged(err, kctx.Flags())))))
	}
	return exitCode(err)
}

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
