"""launch/tpu_vm.sh against a stand-in gcloud whose workers run its commands."""

import pathlib
import shutil
import subprocess
import time

import pytest

from tests.launch import stand_ins

ZONE = "--zone=here"
AWKWARD = [
  '--prompt=it\'s "two"  words\nand $HOME `id` \\ & | ; *',
  "--stop=",
  "--stop=ü",
  "--nochat",
]


@pytest.fixture
def pod(tmp_path):
  return stand_ins.Slice(tmp_path / "pod")


@pytest.fixture
def tree(tmp_path):
  """A working tree with the launchers in it."""
  folder = tmp_path / "tree"
  shutil.copytree(stand_ins.ROOT / "launch", folder / "launch")
  for name in ("pyproject.toml", "a b.py", "gone.py", "ignored.bin"):
    (folder / name).write_text(name)
  (folder / ".gitignore").write_text("*.bin\n")
  (folder / "configs").mkdir()
  (folder / "configs/one.py").write_text("one")
  git(folder, "init", "-q")
  git(folder, "add", ".")
  git(folder, "commit", "-q", "-m", "all")
  (folder / "gone.py").unlink()
  (folder / "untracked.py").write_text("new")
  return folder


def git(folder, *words):
  who = ("-c", "user.name=n", "-c", "user.email=e")
  subprocess.run(["git", "-C", folder, *who, *words], check=True)


def ok(done):
  assert done.returncode == 0, done.stderr
  return done.stdout


def launch(pod, *words, tree=None, **env):
  where = {} if tree is None else {"launch": tree / "launch"}
  return pod.run("tpu_vm.sh", *words, **where, **env)


@pytest.mark.parametrize(
  "type, version",
  [
    ("v4-32", "tpu-ubuntu2204-base"),
    ("v5litepod-16", "v2-alpha-tpuv5-lite"),
    ("v5p-32", "v2-alpha-tpuv5"),
    ("v6e-16", "v2-alpha-tpuv6e"),
  ],
)
def test_create_asks_for_the_slice_with_its_image(pod, type, version):
  ok(launch(pod, "create", "pod", ZONE, f"--type={type}"))
  assert pod.calls()[-1] == [
    *("compute", "tpus", "tpu-vm", "create", "pod"),
    f"--accelerator-type={type}",
    f"--version={version}",
    ZONE,
  ]


def test_create_hands_on_what_it_is_given(pod):
  words = ["--type=v4-8", "--version=mine", "--spot", "--project=p"]
  words += ["--create_flag=--network=a b", "--create_flag=--labels=c=d"]
  ok(launch(pod, "create", "pod", ZONE, *words))
  assert pod.calls()[-1][5:] == [
    *("--accelerator-type=v4-8", "--version=mine", "--spot"),
    *("--network=a b", "--labels=c=d", ZONE, "--project=p"),
  ]


def test_create_twice_leaves_the_slice_alone(pod):
  create = ("create", "pod", ZONE, "--type=v4-32")
  ok(launch(pod, *create))
  assert "there and ready" in ok(launch(pod, *create))
  assert pod.verbs() == ["describe", "create", "describe"]


@pytest.mark.parametrize(
  "state, verbs, code",
  [
    ("PREEMPTED", ["describe", "delete", "create"], 0),
    ("TERMINATED", ["describe", "delete", "create"], 0),
    ("STOPPED", ["describe", "start"], 0),
    ("CREATING", ["describe"], 2),
    ("DENIED", ["describe"], 2),
  ],
)
def test_create_goes_by_the_state_that_it_finds(pod, state, verbs, code):
  pod.put_state(state)
  done = launch(pod, "create", "pod", ZONE, "--type=v4-32")
  assert done.returncode == code
  assert pod.verbs() == verbs
  if code:
    assert "tpu_vm.sh: error: " in done.stderr


def test_delete_twice_is_fine_but_never_when_it_cannot_look(pod):
  pod.put_state("READY")
  ok(launch(pod, "delete", "pod", ZONE))
  assert "not there" in ok(launch(pod, "delete", "pod", ZONE))
  assert pod.verbs() == ["describe", "delete", "describe"]
  pod.put_state("DENIED")
  done = launch(pod, "delete", "pod", ZONE)
  assert done.returncode == 2 and "PERMISSION_DENIED" in done.stderr


def test_setup_copies_the_tree_and_installs_it_on_every_worker(pod, tree):
  out = ok(launch(pod, "setup", "pod", ZONE, tree=tree))
  assert out.count("specjax is installed") == 2
  for worker in pod.workers:
    source = worker / ".specjax/source"
    names = {path.name for path in source.iterdir()}
    assert {"a b.py", "untracked.py", ".gitignore"} <= names
    assert not names & {"gone.py", "ignored.bin", ".git"}
    assert stand_ins.mode(worker / ".specjax") == 0o700
  # Run again: what has gone from the tree goes from the workers.
  (tree / "a b.py").unlink()
  ok(launch(pod, "setup", "pod", ZONE, tree=tree))
  assert not (pod.workers[1] / ".specjax/source/a b.py").exists()
  asked = pod.asked_of_python()
  assert asked.count("uv venv") == 1
  assert asked.count(f"-e {pod.workers[0]}/.specjax/source[tpu,gcs]") == 2


def test_setup_fetches_a_python_where_the_image_is_too_old(pod, tree):
  ok(launch(pod, "setup", "pod", ZONE, "--python=3.13", tree=tree))
  asked = pod.asked_of_python()
  assert "python3 -m pip install --user -q uv" in asked
  assert "python3 -m uv venv --seed -q --python 3.13" in asked


def test_setup_takes_a_python_that_is_there(pod, tree):
  pod.add_python("python3.11")
  ok(launch(pod, "setup", "pod", ZONE, tree=tree))
  asked = pod.asked_of_python()
  assert "python3.11 -m venv" in asked and "uv" not in asked


def test_setup_clones_and_comes_up_to_date(pod, tree):
  words = ("setup", "pod", ZONE, f"--repo={tree}")
  source = pod.workers[1] / ".specjax/source"
  ok(launch(pod, *words))
  assert (source / "gone.py").exists() and not (
    source / "untracked.py"
  ).exists()
  git(tree, "add", "-A")
  git(tree, "commit", "-q", "-m", "more")
  ok(launch(pod, *words))
  assert (source / "untracked.py").exists() and not (
    source / "gone.py"
  ).exists()
  ok(launch(pod, *words, "--ref=HEAD"))


def test_a_setup_that_fails_on_a_worker_fails(pod, tree):
  (pod.home / "generate").write_text("#!/bin/bash\nexit 3\n")
  assert launch(pod, "setup", "pod", ZONE, tree=tree).returncode


def test_a_token_reaches_the_run_and_no_command_line(pod, tree):
  secret = "hf_s3cret$'"
  done = launch(pod, "setup", "pod", ZONE, tree=tree, HF_TOKEN=secret)
  said = ok(done) + done.stderr
  for worker in pod.workers:
    assert stand_ins.mode(worker / ".specjax/hf_token") == 0o600
  dry = launch(
    pod, "setup", "pod", ZONE, "--dry_run", tree=tree, HF_TOKEN=secret
  )
  said += ok(dry) + ok(launch(pod, "run", "pod", ZONE, "--", "--model=m"))
  wait_for(pod.ran)
  assert pod.ran()[0]["token"] == secret
  said += str(pod.calls()) + (pod.workers[0] / ".specjax/run.log").read_text()
  assert "s3cret" not in said


def wait_for(condition, seconds=20):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.02)


@pytest.fixture
def ready(pod, tree):
  ok(launch(pod, "setup", "pod", ZONE, tree=tree))
  pod.calls()
  return pod


def log_of(pod, worker=0):
  return (pod.workers[worker] / ".specjax/run.log").read_text()


def test_run_brings_flags_through_as_they_are(ready):
  ok(launch(ready, "run", "pod", ZONE, "--", *AWKWARD))
  for worker in range(stand_ins.WORKERS):
    wait_for(lambda worker=worker: ready.ran(worker))
    (ran,) = ready.ran(worker)
    assert ran["flags"] == AWKWARD
    assert ran["cwd"] == str(ready.workers[worker] / ".specjax/run")
  assert (ready.workers[0] / ".specjax/run/configs/one.py").exists()


@pytest.mark.parametrize(
  "flags, added",
  [
    (["--output=o"], True),
    (["--output", "o"], True),
    (["--prompt=p"], False),
    (["--output=o", "--resume"], False),
    (["--output=o", "--noresume"], False),
    (["--output=o", "--overwrite"], False),
  ],
)
def test_run_resumes_where_there_is_an_output(pod, flags, added):
  out = ok(launch(pod, "run", "pod", ZONE, "--dry_run", "--", *flags))
  _, sent, _ = out.split("'")
  assert sent.split()[3:] == flags + ["--resume"] * added


def test_run_twice_starts_once_and_stop_ends_it(ready):
  run = ("run", "pod", ZONE, "--", "--wait")
  ok(launch(ready, *run))
  wait_for(lambda: all(map(ready.ran, range(2))))
  assert ok(launch(ready, *run)).count("runs already") == 2
  pids = [
    int((worker / ".specjax/run.pid").read_text()) for worker in ready.workers
  ]
  assert ok(launch(ready, "stop", "pod", ZONE)).count("has ended") == 2
  for pid in pids:
    line = pathlib.Path(f"/proc/{pid}/cmdline")  # empty once it has ended
    assert not line.exists() or not line.read_bytes()
  assert ok(launch(ready, "stop", "pod", ZONE)).count("nothing runs") == 2
  assert len(ready.ran()) == 1
  ok(launch(ready, "run", "pod", ZONE, "--", "--again"))
  wait_for(lambda: len(ready.ran()) == 2)


def test_logs_show_the_run_and_how_it_ended(ready):
  assert launch(ready, "logs", "pod", ZONE).returncode == 1
  ok(launch(ready, "run", "pod", ZONE, "--", "--model=m"))
  for worker in range(2):
    wait_for(lambda worker=worker: "exit code 0" in log_of(ready, worker))
  ready.calls()
  out = ok(launch(ready, "logs", "pod", ZONE, "--worker=1"))
  assert "specjax-generate --model=m" in out and "it runs" in out
  assert "--worker=1" in ready.calls()[0]


def test_run_before_setup_says_so(pod):
  done = launch(pod, "run", "pod", ZONE, "--", "--model=m")
  assert done.returncode
  assert "No such file" in done.stderr or "run setup first" in done.stderr


def test_a_dry_run_calls_nothing(pod, tree):
  for words in (
    ("create", "pod", ZONE, "--type=v4-32"),
    ("setup", "pod", ZONE),
    ("run", "pod", ZONE),
    ("logs", "pod", ZONE),
    ("stop", "pod", ZONE),
    ("delete", "pod", ZONE),
  ):
    flags = ("--", "--model=m") if words[0] == "run" else ()
    out = ok(launch(pod, *words, "--dry_run", *flags, tree=tree))
    lines = out.splitlines()
    assert lines and all(
      line.startswith("gcloud compute tpus tpu-vm ") for line in lines
    )
  assert not pod.calls()


@pytest.mark.parametrize(
  "words, message",
  [
    ((), "no command; give one of create setup"),
    (("make", "pod"), "unknown command 'make'"),
    (("create",), "'' is no name"),
    (("create", "Pod"), "'Pod' is no name"),
    (("create", "pod", "--type=v4-32"), "--zone is missing"),
    (("create", "pod", ZONE), "--type is missing"),
    (("create", "pod", ZONE, "--type=a100"), "--type=a100: no image"),
    (("create", "pod", ZONE, "--zome=x"), "unknown option --zome"),
    (("create", "pod", ZONE, "--spot=1"), "--spot takes no value"),
    (("create", "pod", "--zone"), "--zone needs a value"),
    (("setup", "pod", ZONE, "--spot"), "--spot does nothing with setup"),
    (("setup", "pod", ZONE, "--ref=x"), "--ref does nothing without --repo"),
    (("setup", "pod", ZONE, "--python=3.10"), "--python=3.10: give"),
    (("run", "pod", ZONE), "run needs flags of specjax-generate"),
    (("run", "pod", ZONE, "--model=m"), "unknown option --model"),
    (("run", "pod", ZONE, "m"), "'m' is no option; flags of"),
    (("logs", "pod", ZONE, "--worker=x"), "--worker=x: give a number"),
    (("logs", "pod", ZONE, "--", "--x"), "flags after -- are for run"),
  ],
)
def test_a_wrong_command_line_is_one_line(pod, words, message):
  done = launch(pod, *words)
  assert done.returncode == 2 and not done.stdout
  (line,) = done.stderr.splitlines()
  assert line.startswith("tpu_vm.sh: error: ") and message in line
  assert not pod.calls()
