"""launch/gke_jobset.sh: the manifest it fills in, and a stand-in kubectl."""

import pytest
import yaml

from tests.launch import stand_ins

SLICE = ("--image=repo/specjax:1", "--accelerator=tpu-v5-lite-podslice")
RUN = ("run", "answers", *SLICE, "--topology=4x4")
AWKWARD = [
  '--prompt=it\'s "two"\twords\nand $(HOME) $$ ${X} `id` \\n & # __NAME__',
  "--stop=: - {a: [b]} ü",
  "--config.top_p=0.9",
]


@pytest.fixture
def cluster(tmp_path):
  return stand_ins.Slice(tmp_path)


def launch(cluster, *words):
  return cluster.run("gke_jobset.sh", *words)


def manifest(cluster, *words):
  done = launch(cluster, *words)
  assert done.returncode == 0, done.stderr
  ((*call, text),) = cluster.calls()
  assert call == ["apply", "-f", "-"]
  return yaml.safe_load(text)


def job(made):
  (replicated,) = made["spec"]["replicatedJobs"]
  return replicated["template"]["spec"]


def container(made):
  (one,) = job(made)["template"]["spec"]["containers"]
  return one


def as_kubernetes_reads(argument):
  """Kubernetes' expansion where no variable is known."""
  return argument.replace("$$", "$")


def test_run_applies_a_job_of_the_slices_hosts(cluster):
  made = manifest(cluster, *RUN, "--", "--model=m")
  assert made["kind"] == "JobSet" and made["metadata"]["name"] == "answers"
  spec = job(made)
  assert (spec["parallelism"], spec["completions"]) == (4, 4)
  pod = spec["template"]["spec"]
  assert pod["nodeSelector"] == {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "4x4",
  }
  assert "tolerations" not in pod
  one = container(made)
  assert one["image"] == "repo/specjax:1"
  assert one["resources"]["limits"] == {"google.com/tpu": 4}
  assert (one["command"], one["args"]) == (["specjax-generate"], ["--model=m"])


@pytest.mark.parametrize(
  "topology, per_host, hosts, chips",
  [
    ("2x2x4", None, 4, 4),
    ("4x8", "8", 4, 8),
    ("2x2", None, 1, 4),
    ("1x1", None, 1, 1),
  ],
)
def test_hosts_follow_from_the_topology(
  cluster, topology, per_host, hosts, chips
):
  words = ["run", "answers", *SLICE, f"--topology={topology}"]
  words += [f"--chips_per_host={per_host}"] if per_host else []
  made = manifest(cluster, *words, "--", "--model=m")
  assert job(made)["completions"] == hosts
  limits = container(made)["resources"]["limits"]
  assert limits == {"google.com/tpu": chips}


def test_flags_come_through_as_they_are(cluster):
  made = manifest(cluster, *RUN, "--", *AWKWARD)
  args = container(made)["args"]
  assert [as_kubernetes_reads(one) for one in args] == AWKWARD


def test_an_output_is_resumed_also_after_a_restart(cluster):
  made = manifest(cluster, *RUN, "--restarts=7", "--", "--output=gs://b/o")
  assert container(made)["args"] == ["--output=gs://b/o", "--resume"]
  assert made["spec"]["failurePolicy"] == {"maxRestarts": 7}


def test_spot_nodes_are_asked_for_and_tolerated(cluster):
  made = manifest(cluster, *RUN, "--spot", "--", "--model=m")
  pod = job(made)["template"]["spec"]
  assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
  (toleration,) = pod["tolerations"]
  assert toleration["value"] == "true"


def test_the_token_is_a_reference_to_a_secret(cluster):
  done = cluster.run(
    "gke_jobset.sh", *RUN, "--token_secret=mine", "--", "--m", HF_TOKEN="s3cret"
  )
  assert done.returncode == 0
  ((*_, text),) = cluster.calls()
  assert "s3cret" not in text + done.stdout + done.stderr
  (env,) = container(yaml.safe_load(text))["env"]
  source = env["valueFrom"]["secretKeyRef"]
  assert source == {"name": "mine", "key": "token", "optional": True}


def test_a_dry_run_prints_the_manifest_and_applies_nothing(cluster):
  done = launch(cluster, *RUN, "--dry_run", "--", *AWKWARD)
  assert container(yaml.safe_load(done.stdout))["args"]
  assert not cluster.calls()


def test_the_same_again_is_the_same_manifest(cluster):
  words = (*RUN, "--namespace=team", "--service_account=reader", "--", "--m")
  first, second = manifest(cluster, *words), manifest(cluster, *words)
  assert first == second
  assert first["metadata"]["namespace"] == "team"
  pod = job(first)["template"]["spec"]
  assert pod["serviceAccountName"] == "reader"


def test_logs_and_delete(cluster):
  assert launch(cluster, "logs", "answers", "--worker=2", "--follow")
  launch(cluster, "delete", "answers", "--namespace=team")
  logs, delete = (call[:-1] for call in cluster.calls())
  selector = "jobset.sigs.k8s.io/jobset-name=answers"
  selector += ",batch.kubernetes.io/job-completion-index=2"
  assert logs == [
    *("logs", "--namespace=default", f"--selector={selector}", "--tail=200"),
    "--follow",
  ]
  assert delete == [
    *("delete", "jobset", "answers", "--namespace=team", "--ignore-not-found")
  ]


@pytest.mark.parametrize(
  "words, message",
  [
    (("run", "a", "--topology=4x4"), "--image is missing"),
    (("run", "a", *SLICE), "--topology is missing"),
    (("run", "a", *SLICE, "--topology=4x4"), "run needs flags"),
    ((*RUN[:-1], "--topology=4x", "--", "--m"), "--topology=4x: malformed"),
    ((*RUN[:-1], "--topology=3x2", "--", "--m"), "6 chips, no multiple of"),
    ((*RUN, "--image=a b", "--", "--m"), "--image=a b: malformed"),
    ((*RUN, "--restarts=-1", "--", "--m"), "--restarts=-1: malformed"),
    ((*RUN, "--namespace=A", "--", "--m"), "--namespace=A: malformed"),
    ((*RUN, "--", "--stop=\x1b"), "a flag holds a control character"),
    (("logs", "a", "--spot"), "--spot does nothing with logs"),
    (("delete", "a", "--", "--m"), "flags after -- are for run"),
  ],
)
def test_a_wrong_command_line_is_one_line(cluster, words, message):
  done = launch(cluster, *words)
  assert done.returncode == 2 and not done.stdout
  (line,) = done.stderr.splitlines()
  assert line.startswith("gke_jobset.sh: error: ") and message in line
  assert not cluster.calls()
