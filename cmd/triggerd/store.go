package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// mongoFlags choose the database.
type mongoFlags struct {
	MongoURI     string        `name:"mongo-uri" help:"MongoDB connection string." placeholder:"URI"`
	Database     string        `help:"Database name." default:"triggerd"`
	StoreTimeout time.Duration `help:"Timeout of one database operation." default:"10s"`
}

// requiredMongo is for commands that make no sense on a store that is gone
// with the process.
type requiredMongo struct {
	MongoURI     string        `name:"mongo-uri" help:"MongoDB connection string." placeholder:"URI" required:""`
	Database     string        `help:"Database name." default:"triggerd"`
	StoreTimeout time.Duration `help:"Timeout of one database operation." default:"10s"`
}

func (f requiredMongo) connect(ctx context.Context) (*boardmongo.Store, error) {
	if f.MongoURI == "" {
		return nil, tracker.Fieldf("--mongo-uri", "must not be empty")
	}
	return boardmongo.Connect(ctx, boardmongo.Params{URI: f.MongoURI, Database: f.Database, Timeout: f.StoreTimeout})
}

// open opens the store that the flags choose, with its schema applied, and
// returns how to close it.
func (f mongoFlags) open(ctx context.Context, log zerolog.Logger) (trigger.Store, func(), error) {
	if f.MongoURI == "" {
		log.Warn().Msg("EMBEDDED STORE: no --mongo-uri is set; everything is kept in this process's memory and is gone with it")
		return boardmem.New(), func() {}, nil
	}
	store, err := requiredMongo(f).connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := store.SchemaApply(ctx, func(n boardmongo.SchemaNote) {
		level := zerolog.InfoLevel
		if n.Warn {
			level = zerolog.WarnLevel
		}
		log.WithLevel(level).Msg("schema: " + n.Text)
	}); err != nil {
		closeStore(store)
		return nil, nil, err
	}
	return store, func() { closeStore(store) }, nil
}

func closeStore(store *boardmongo.Store) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = store.Close(ctx)
}

// sealFlags choose the key that seals secrets.
type sealFlags struct {
	SealKeyFile string `help:"File with the key that seals secrets at rest; TRIGGERD_SEAL_KEY wins over it." placeholder:"FILE"`
}

func (f sealFlags) sealer() (trigger.Sealer, error) {
	return seal.Load(os.Getenv(seal.KeyEnv), f.SealKeyFile)
}

// logFlags shape the log, which goes to standard error.
type logFlags struct {
	LogLevel  string `help:"Least level to log: ${enum}." enum:"debug,info,warn,error" default:"info"`
	LogFormat string `help:"Form of the log: ${enum}. auto is console on a terminal, else json." enum:"auto,json,console" default:"auto"`
}

func init() { zerolog.TimeFieldFormat = time.RFC3339Nano } // a global of the package: set once

func (f logFlags) logger(w io.Writer) zerolog.Logger {
	level, _ := zerolog.ParseLevel(f.LogLevel) // the enum admits only levels
	if f.LogFormat == "console" || f.LogFormat == "auto" && terminal(w) {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: true}
	}
	return zerolog.New(zerolog.SyncWriter(w)).Level(level).With().Timestamp().Logger()
}

// terminal reports whether somebody watches what is written.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
