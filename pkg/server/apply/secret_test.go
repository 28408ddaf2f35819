package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestSecretChangesAreShownWithoutValue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	b.env["IMPLEMENTER_SECRET"] = "whsec_another-one-W2"
	b.files["/run/secrets/github"] = "another-secret-of-github"
	r := b.mustApply(t, fullFile)
	require.Equal(t, []string{"secret: changed"}, line(t, r, KindBot, "implementer").Details)
	require.Equal(t, []string{"secret: changed"}, line(t, r, KindHook, "github").Details)
	require.Equal(t, "0 created, 2 updated, 4 unchanged", lastLine(r))
	bots, err := b.BotList(t.Context(), "acme")
	require.NoError(t, err)
	opened, err := b.sealer.Open("acme/bot/"+bots[0].ID, bots[0].Secret)
	require.NoError(t, err)
	require.Equal(t, "another-one-W2", string(opened))
	require.False(t, b.mustApply(t, fullFile).Changed())

	t.Log("one that has none yet gets it")
	bots[0].Secret = ""
	bots[0].Revision++
	require.NoError(t, b.BotSave(t.Context(), &bots[0]))
	require.Equal(t, []string{"secret: changed"}, line(t, b.mustApply(t, fullFile), KindBot, "implementer").Details)
}

// A file has either of the two secrets while one is rotated, and ends no
// rotation.
func TestAFileLeavesARotationAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	ctx := t.Context()
	const nextBot, nextHook = "the-next-one-of-the-bot", "the-next-one-of-the-hook"
	bots, err := b.BotList(ctx, "acme")
	require.NoError(t, err)
	bot := bots[0]
	bot.NextSecret, err = b.sealer.Seal(trigger.BotOwner("acme", bot.ID), []byte(nextBot))
	require.NoError(t, err)
	bot.Revision++
	require.NoError(t, b.BotSave(ctx, &bot))
	hooks, err := b.HookList(ctx, "acme")
	require.NoError(t, err)
	hook := hooks[0]
	hook.NextSecret, err = b.sealer.Seal(trigger.HookOwner("acme", hook.ID), []byte(nextHook))
	require.NoError(t, err)
	hook.Revision++
	require.NoError(t, b.HookSave(ctx, &hook))

	require.False(t, b.mustApply(t, fullFile).Changed(), "the old ones")
	b.env["IMPLEMENTER_SECRET"], b.files["/run/secrets/github"] = "whsec_"+nextBot, nextHook
	require.False(t, b.mustApply(t, fullFile).Changed(), "the next ones")
	b.env["IMPLEMENTER_SECRET"], b.files["/run/secrets/github"] = "whsec_a-third-one", "a-third-one-of-github"
	_, err = b.apply(t, fullFile)
	require.ErrorContains(t, err, "bots[0].secret: it is being rotated, and this is neither")
	require.ErrorContains(t, err, "hooks[0].secret: it is being rotated, and this is neither")
	require.NotContains(t, err.Error(), "third")
	b.sealer.key = "k2"
	_, err = b.apply(t, fullFile)
	require.ErrorContains(t, err, "the stored secret can't be opened")
	stored, err := b.BotGet(ctx, "acme", bot.ID)
	require.NoError(t, err)
	require.Equal(t, bot, *stored)
}

// A file may have the URL as the API shows it, with its query hidden.
func TestAHiddenQueryStandsForTheStoredOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, edit(t, fullFile, "9000/launch", "9000/launch?token=s3cret"))
	hidden := edit(t, fullFile, "9000/launch", "9000/launch?***")
	require.False(t, b.mustApply(t, hidden).Changed())
	_, err := b.apply(t, edit(t, hidden, "9000", "9001"))
	require.ErrorContains(t, err, "bots[0].url: is refused: give the whole URL")
	bots, err := b.BotList(t.Context(), "acme")
	require.NoError(t, err)
	require.Equal(t, "http://127.0.0.1:9000/launch?token=s3cret", bots[0].URL)
	b = setup(t)
	_, err = b.apply(t, hidden)
	require.ErrorContains(t, err, "bots[0].url: is refused: give the whole URL", "of a new one there is none")
}

// Whatever goes wrong, and however careless the parts are whose errors pass
// through: no output has a secret, or a piece of one.
func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	var outputs []string
	note := func(r Result, err error) {
		outputs = append(outputs, r.String(), fmt.Sprintf("%v %+v %#v", r, r, r), fmt.Sprintf("%v %+v %#v", err, err, err))
		text, jerr := json.Marshal(r)
		require.NoError(t, jerr)
		outputs = append(outputs, string(text))
	}
	type change func(b *bundle, text string) string
	unedited := func(f func(b *bundle)) change {
		return func(b *bundle, text string) string { f(b); return text }
	}
	replaced := func(from, to string) change {
		return func(_ *bundle, text string) string { return edit(t, text, from, to) }
	}
	const ref = "{env: IMPLEMENTER_SECRET}"
	for _, c := range []change{
		unedited(func(*bundle) {}),
		unedited(func(b *bundle) { b.params.DryRun = true }),
		unedited(func(b *bundle) { b.env["IMPLEMENTER_SECRET"] = strings.TrimPrefix(botSecret, "whsec_") }), // ParseSecret repeats it
		unedited(func(b *bundle) { b.sealer.err = fmt.Errorf("can't encrypt %s or %s", hookSecret, botSecret) }),
		unedited(func(b *bundle) { b.params.CheckURL = func(u string) error { return fmt.Errorf("parse %q: bad", u) } }),
		unedited(func(b *bundle) {
			b.params.ReadFile = func(string) ([]byte, error) { return nil, errors.New("read " + hookSecret) }
		}),
		replaced(ref, botSecret),
		replaced(ref, "*"+botSecret),
		replaced(ref, "{env: "+botSecret+"}"),
		replaced(ref, "{file: "+botSecret+"}"),
		replaced(ref, "{value: "+botSecret+"}"),
		replaced(ref, "{"+botSecret+"}"),
		replaced(ref, "{"+botSecret+": x, "+botSecret+": y}"),
		replaced(ref, "["+botSecret+"]"),
		replaced(ref, "{env: ["+botSecret+"]}"),
		replaced(ref, "!!int "+botSecret),
		replaced(ref, `"`+botSecret),
		replaced(ref, "|\n"+botSecret),
		replaced("9000/launch", "9000/hook/"+botSecret),
		replaced("9000/launch", "9000/hook?token="+botSecret),
		replaced("http://127.0.0.1:9000", "http://u:"+botSecret+"@127.0.0.1:9000"),
		replaced("http://127.0.0.1:9000", "http://127.0.0.1:"+botSecret),
		replaced("model: large", "model: "+botSecret),
		replaced("rank: 10", "rank: "+botSecret),
	} {
		b := setup(t)
		note(b.apply(t, c(b, fullFile)))
		b.env["IMPLEMENTER_SECRET"] = botSecret + "2"
		note(b.apply(t, c(b, fullFile)))

		// The same on a store that has it all, with another key at last.
		b = setup(t)
		b.mustApply(t, fullFile)
		note(b.apply(t, c(b, fullFile)))
		b.sealer.key = "k2"
		note(b.apply(t, c(b, fullFile)))
	}
	require.NotEmpty(t, outputs)
	for _, out := range outputs {
		for _, s := range []string{botSecret, strings.TrimPrefix(botSecret, "whsec_"), hookSecret, "Zk3x9", "Qp71"} {
			require.NotContains(t, out, s)
		}
	}
}

func TestReasonsAreKept(t *testing.T) {
	t.Parallel()
	secret := "whsec_abcdefghijkl"
	require.Equal(t, ": must begin with whsec_", reason(errors.New("must begin with whsec_"), secret))
	require.Empty(t, reason(errors.New("abcdefghi is no good"), secret), "a piece of it")
	require.Empty(t, reason(errors.New("no abc"), "abc"), "all of a short one")
	require.Equal(t, ": no abc", reason(errors.New("no abc"), ""))
	require.Equal(t, "[sealed]", fmt.Sprint(trigger.Sealed("x")))
}
