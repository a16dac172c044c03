"""launch/queued_resource.sh against a stand-in gcloud."""

import pytest

from tests.launch import stand_ins

ZONE = "--zone=here"
CREATE = ("create", "pod", ZONE, "--type=v5p-32")
KIND = "queued-resources"


@pytest.fixture
def pod(tmp_path):
  return stand_ins.Slice(tmp_path)


def launch(pod, *words):
  return pod.run("queued_resource.sh", *words)


def test_create_asks_once(pod):
  done = launch(
    pod, *CREATE, "--spot", "--valid_for=6h", "--create_flag=--network=n"
  )
  assert done.returncode == 0, done.stderr
  assert pod.calls()[-1] == [
    *("compute", "tpus", KIND, "create", "pod", "--node-id=pod"),
    *("--accelerator-type=v5p-32", "--runtime-version=v2-alpha-tpuv5"),
    *("--spot", "--valid-until-duration=6h", "--network=n", ZONE),
  ]
  assert "pod is there: ACTIVE" in launch(pod, *CREATE).stdout
  assert pod.verbs() == ["describe"]


@pytest.mark.parametrize("state", ("FAILED", "SUSPENDED"))
def test_what_failed_or_was_preempted_is_made_anew(pod, state):
  pod.put_state(state, kind=KIND)
  assert launch(pod, *CREATE).returncode == 0
  assert pod.verbs() == ["describe", "delete", "create"]


def test_wait_tells_the_states_and_ends_when_it_is_there(pod):
  states = ("WAITING_FOR_RESOURCES",) * 2 + ("PROVISIONING", "ACTIVE")
  pod.put_state(*states, kind=KIND)
  done = launch(pod, "wait", "pod", ZONE, "--every=0")
  assert done.returncode == 0
  assert done.stdout.splitlines() == [
    *("pod: WAITING_FOR_RESOURCES", "pod: PROVISIONING", "pod: ACTIVE")
  ]


@pytest.mark.parametrize("state", ("FAILED", "SUSPENDED", None, "DENIED"))
def test_wait_gives_up_on_what_will_not_come(pod, state):
  if state:
    pod.put_state(state, kind=KIND)
  done = launch(pod, "wait", "pod", ZONE, "--every=0")
  assert done.returncode == 2 and "error: " in done.stderr


def test_delete_takes_the_slice_too_and_twice_is_fine(pod):
  pod.put_state("ACTIVE", kind=KIND)
  for _ in range(2):
    assert launch(pod, "delete", "pod", ZONE).returncode == 0
  _, delete, _ = pod.calls()
  assert delete[3:] == ["delete", "pod", "--force", "--quiet", ZONE]


@pytest.mark.parametrize("command", ("setup", "run", "logs", "stop"))
def test_the_rest_is_that_of_a_slice(pod, command):
  words = (command, "pod", ZONE, "--dry_run")
  words += ("--", "--prompt=a b") if command == "run" else ()
  ours, theirs = launch(pod, *words), pod.run("tpu_vm.sh", *words)
  assert ours.returncode == 0, ours.stderr
  # A folder for what is copied has a random name.
  assert ours.stdout.split("/tmp")[0] == theirs.stdout.split("/tmp")[0]


def test_a_dry_run_calls_nothing(pod):
  for words in (CREATE, ("wait", "pod", ZONE), ("delete", "pod", ZONE)):
    done = launch(pod, *words, "--dry_run")
    assert done.stdout.startswith("gcloud compute tpus queued-resources ")
  assert not pod.calls()


def test_a_wrong_command_line_is_one_line(pod):
  for words, message in (
    (("create", "pod", ZONE), "--type is missing"),
    (("wait", "pod", ZONE, "--every=x"), "--every=x: give seconds"),
    (("wait", "pod", ZONE, "--spot"), "--spot does nothing with wait"),
    (("go", "pod"), "unknown command 'go'; give one of create wait delete set"),
  ):
    done = launch(pod, *words)
    assert done.returncode == 2 and not done.stdout
    assert message in done.stderr and done.stderr.count("\n") == 1
