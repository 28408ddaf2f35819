package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// instructions are those of a container file's last stage, by name.
func instructions(text string) map[string]string {
	_, text, _ = strings.Cut(text, "\nFROM scratch\n")
	out := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, rest, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			out[name] = rest
		}
	}
	return out
}

// The command that builds the container's binary builds one that runs where
// nothing else is: static, with the time zones.
func TestContainerBinary(t *testing.T) {
	t.Parallel()
	text := deployFile(t, "Containerfile")
	build := find(t, text, `(?m)^RUN (CGO_ENABLED=0 go build .*)$`)
	dir := t.TempDir()
	binary := filepath.Join(dir, "triggerd")
	require.Contains(t, build, " -o /out/triggerd ")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(build, "/out/triggerd", binary, 1))
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "VERSION=v0.0.0-test")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))

	f, err := elf.Open(binary)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "it asks for a dynamic linker")
	}
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libs)

	last := instructions(text)
	require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, last["USER"])
	var entry, args []string
	require.NoError(t, json.Unmarshal([]byte(last["ENTRYPOINT"]), &entry))
	require.NoError(t, json.Unmarshal([]byte(last["CMD"]), &args))
	require.Equal(t, []string{"/usr/local/bin/triggerd"}, entry)
	require.Contains(t, text, "/out/triggerd "+entry[0]+"\n")
	require.Equal(t, "0.0.0.0:8080", parsedServe(t, args).Listen)
	require.Equal(t, "8080", last["EXPOSE"])

	// As in the container: in a file system that has nothing else, where that is
	// allowed here.
	run := func(attr *syscall.SysProcAttr) (*exec.Cmd, *output, error) {
		args[2] = "127.0.0.1:0"
		cmd := exec.CommandContext(t.Context(), binary, args...)
		if attr != nil {
			cmd.Path, cmd.Dir = "/triggerd", "/"
		}
		cmd.SysProcAttr = attr
		cmd.Env = []string{"TZ=Asia/Kolkata"}
		logs := newOutput()
		cmd.Stderr = logs
		return cmd, logs, cmd.Start()
	}
	attr := &syscall.SysProcAttr{Chroot: dir}
	if os.Getuid() != 0 {
		attr.Cloneflags = syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	}
	cmd, logs, err := run(attr)
	if err != nil {
		t.Logf("no file system of its own here: %v", err)
		cmd, logs, err = run(nil)
	}
	require.NoError(t, err)
	logs.await(t, `"message":"ready"`)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	line := []byte(strings.TrimSpace(logs.String()))
	var entryLog struct {
		Time time.Time `json:"time"`
	}
	require.NoError(t, json.Unmarshal(line[bytes.LastIndexByte(line, '\n')+1:], &entryLog))
	_, offset := entryLog.Time.Zone()
	require.Equal(t, 5*3600+1800, offset, "it does not know Asia/Kolkata: %s", line)
}
