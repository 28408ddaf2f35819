package trigger

import (
	"context"
	"slices"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Covers reports whether the pause holds up claims of the lane.
func (p *Pause) Covers(tenantID, lane string) bool {
	return newPauseSet([]Pause{*p}).holds(laneKey{tenantID, lane})
}

// Pause holds up the claims of a bot, of a tenant or of the fleet, and returns
// the pause that holds now: one of the same scope that was there stays as it
// is. What is under way is finished.
func (dl *DeadLetters) Pause(ctx context.Context, p Pause) (*Pause, error) {
	if p.BotID != "" && p.TenantID == "" {
		return nil, tracker.Fieldf("tenant", "is required with a bot")
	}
	if err := checkWho(p.By, p.Note); err != nil {
		return nil, err
	}
	if err := dl.scopeExists(ctx, p.TenantID, p.BotID); err != nil {
		return nil, err
	}
	p.At = dl.Clock.Now()
	if err := dl.Pauses.PauseSet(ctx, p); err != nil {
		return nil, err
	}
	all, err := dl.Pauses.PauseList(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].TenantID == p.TenantID && all[i].BotID == p.BotID {
			return &all[i], nil
		}
	}
	return &p, nil // somebody ended it already
}

func (dl *DeadLetters) scopeExists(ctx context.Context, tenantID, botID string) error {
	if tenantID == "" {
		return nil
	}
	if _, err := dl.Config.TenantGet(ctx, tenantID); err != nil {
		return err
	}
	if botID == "" {
		return nil
	}
	_, err := dl.Config.BotGet(ctx, tenantID, botID)
	return err
}

// Resume ends the pause of the scope and reports whether there was one. The
// lanes of the scope that have rows are due at once; when marking them fails,
// that is a Warn, and the sweep finds them. A wider or narrower pause stays.
func (dl *DeadLetters) Resume(ctx context.Context, tenantID, botID string) (bool, error) {
	if botID != "" && tenantID == "" {
		return false, tracker.Fieldf("tenant", "is required with a bot")
	}
	was, err := dl.Pauses.PauseClear(ctx, tenantID, botID)
	if err != nil {
		return false, err
	}
	if !was {
		// What is gone can't have been paused; what is there can be marked
		// again, as after a resume whose answer was lost.
		if err := dl.scopeExists(ctx, tenantID, botID); err != nil {
			return false, err
		}
	}
	late, err := dl.Lanes.LanesLate(context.WithoutCancel(ctx))
	if err != nil {
		dl.Logger.Warn().Err(err).Str("tenant", tenantID).Str("bot", botID).Msg("dead letters: lanes of what was resumed could not be marked, the lane sweeper finds them")
		return was, nil
	}
	scope := Pause{TenantID: tenantID, BotID: botID}
	dl.markList(ctx, slices.DeleteFunc(late, func(m LaneMark) bool { return !scope.Covers(m.TenantID, m.Lane) }))
	return was, nil
}
