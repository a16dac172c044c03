"""The CPU's own kernels, in the folder cpu: products, attention and others.

XLA's CPU library reads weights at a third of memory's speed in bfloat16, and
packs them anew on every call in float32; its attention over a cache takes ten
times as long as reading it. These kernels are compiled by the machine's own
compiler when first needed, kept in the user cache folder, and called by XLA as
part of the program. Where they cannot be had, `find` says so, and all is XLA's.
"""

import ctypes
import functools
import hashlib
import logging
import os
import pathlib
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np

from specjax import user_cache
from specjax.models.int8 import Int8
from specjax.types import Array

MOST_ROWS = 256  # Beyond them XLA's product is as fast, or faster.

_FOLDER = pathlib.Path(__file__).with_name("cpu")
_SOURCE = _FOLDER / "kernels.cc"
# By their numbers in cpu/gated.h.
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
_KERNELS = (
  *(
    f"{kernel}_{dtype}"
    for kernel in (
      *("product", "int8", "gated", "gated_int8"),
      *("attention", "norm", "pack"),
    )
    for dtype in ("float32", "bfloat16")
  ),
  *("largest_float32", "lookup", "noise"),
)
_COMPILERS = ("c++", "g++", "clang++")
# Nothing that takes numbers for finite, or sums in another order.
_FLAGS = (
  *("-std=c++17", "-O3", "-march=native", "-ffp-contract=off"),
  *("-shared", "-fPIC", "-w"),
)
_COMPILE_S = 120  # Takes 5 to 12.
_DIGEST = hashlib.sha256().digest_size
_log = logging.getLogger(__name__)


def find() -> str | None:
  """The name that the kernels go by; None where XLA's are to be used.

  That is: on another backend, with several devices (a call of foreign code is
  not split among them), without a C++ compiler or a cache folder of the
  user's own, and if SPECJAX_KERNELS is off.

  Raises:
    ValueError: SPECJAX_KERNELS is neither on nor off.
  """
  chosen = os.environ.get("SPECJAX_KERNELS", "on")
  if chosen not in ("on", "off"):
    raise ValueError(f"SPECJAX_KERNELS={chosen!r}: must be on or off")
  if chosen == "off":
    return None
  if jax.default_backend() != "cpu" or jax.device_count() > 1:
    return None
  return _registered()


def products(name: str, x: Array, *weights: Array) -> tuple[Array, ...]:
  """x [T, in] times weights [out, in] of x's dtype -> float32 [T, out] each.

  A row of a result depends on no other row, nor on T, bit for bit.

  Args:
    name: what `find` returned.
    x: float32 or bfloat16.
    *weights: as they lie in memory, read once. Together they are one call,
      which costs some microseconds.
  """
  return _call(name, x, weights)


def int8_products(name: str, x: Array, *weights: Int8) -> tuple[Array, ...]:
  """x [T, in] times weights [out, in] -> float32 [T, out] each.

  As `products`, and has no slopes.

  Args:
    name: what `find` returned.
    x: float32 or bfloat16.
    *weights: read once.
  """
  outs = tuple(
    jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32)
    for weight in weights
  )
  target = f"{name}_int8_{x.dtype.name}"
  call = jax.ffi.ffi_call(target, outs, vmap_method="sequential")
  return tuple(call(x, *jax.tree.leaves(weights)))


def gated(
  name: str, activation: str, x: Array, gate: Array | Int8, up: Array | Int8
) -> Array:
  """act(x gate^T) * (x up^T), [T, F] of x's dtype; gate and up are [F, in].

  The products, the activation and the result are rounded to x's dtype. Has no
  slopes of its own.

  Args:
    name: what `find` returned.
    activation: one of ACTIVATIONS.
    x, gate, up: as in `products`, or `int8_products`.
  """
  out = jax.ShapeDtypeStruct((x.shape[0], gate.shape[0]), x.dtype)
  kind = "_int8" if isinstance(gate, Int8) else ""
  target = f"{name}_gated{kind}_{x.dtype.name}"
  call = jax.ffi.ffi_call(target, out, vmap_method="sequential")
  parts = jax.tree.leaves((gate, up))
  return call(x, *parts, activation=np.int32(ACTIVATIONS[activation]))


def largest(name: str, x: Array) -> tuple[Array, Array]:
  """Where the largest of x [..., V] first is, int32 [...], and it [...].

  Where there is a NaN it is NaN, and the place any. Has no slopes.

  Args:
    name: what `find` returned.
    x: float32, of V > 0.
  """
  outs = tuple(
    jax.ShapeDtypeStruct(x.shape[:-1], dtype) for dtype in (jnp.int32, x.dtype)
  )
  call = jax.ffi.ffi_call(
    f"{name}_largest_float32", outs, vmap_method="broadcast_all"
  )
  return tuple(call(x))


def norm(
  name: str, eps: float, plus_one: bool, x: Array, weight: Array
) -> Array:
  """x / rms(x) * weight, [T, D] of x's dtype. Has no slopes of its own.

  A row of the result depends on no other row, nor on T, bit for bit.

  Args:
    name: what `find` returned.
    eps: added to the mean of squares.
    plus_one: see `norms.RMSNorm`.
    x: [T, D], float32 or bfloat16.
    weight: [D], of x's dtype.
  """
  out = jax.ShapeDtypeStruct(x.shape, x.dtype)
  target = f"{name}_norm_{x.dtype.name}"
  call = jax.ffi.ffi_call(target, out, vmap_method="sequential")
  return call(x, weight, eps=np.float32(eps), plus_one=np.int32(plus_one))


def pack(name: str, dtype, k: Array, v: Array) -> tuple[Array, Array]:
  """Keys and values [B, T, K, H] as a cache stores them: [B, K, T, H].

  See `KVCache.write`, which does it where there is no kernel.

  Args:
    name: what `find` returned.
    dtype: of the storage, as large as theirs.
    k, v: float32 or bfloat16.
  """
  rows, width, heads, size = k.shape
  out = jax.ShapeDtypeStruct((rows, heads, width, size), dtype)
  target = f"{name}_pack_{k.dtype.name}"
  call = jax.ffi.ffi_call(target, (out, out), vmap_method="sequential")
  return tuple(call(k, v))


def noise(name: str, keys: Array, size: int) -> Array:
  """Exponentials of mean 1, float32 [B, size]; see `sampling.exponential`.

  Of the bits that `jax.random.bits` has of the same keys, within rounding.

  Args:
    name: what `find` returned.
    keys: uint32 [B, 2], data of Threefry keys.
    size: above 0.
  """
  out = jax.ShapeDtypeStruct((keys.shape[0], size), jnp.float32)
  call = jax.ffi.ffi_call(f"{name}_noise", out, vmap_method="sequential")
  return call(keys)


def lookup(name: str, table: Array, ids: Array) -> Array:
  """Of a table [V, D] the rows ids int32 [...]: [..., D]. Has no slopes.

  Args:
    name: what `find` returned.
    table: of V > 0, in whatever dtype.
    ids: those beyond the table are its last.
  """
  out = jax.ShapeDtypeStruct((*ids.shape, table.shape[1]), table.dtype)
  call = jax.ffi.ffi_call(f"{name}_lookup", out, vmap_method="sequential")
  return call(table, ids)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _call(name, x, weights):
  outs = tuple(
    jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32)
    for weight in weights
  )
  target = f"{name}_product_{x.dtype.name}"
  call = jax.ffi.ffi_call(target, outs, vmap_method="sequential")
  return tuple(call(x, *weights))


@functools.partial(_call.defjvp, symbolic_zeros=True)
def _differentiate(name, primals, tangents):
  """By XLA's products, which know how to be transposed."""
  zero = jax.custom_derivatives.SymbolicZero
  outs = _call(name, *primals)
  slopes = []
  for out, weight, turn in zip(outs, primals[1], tangents[1], strict=True):
    slope = jnp.zeros_like(out)
    for left, right in ((tangents[0], weight), (primals[0], turn)):
      if not isinstance(left, zero) and not isinstance(right, zero):
        slope += jnp.einsum(
          "ti,oi->to",
          left,
          right,
          precision=jax.lax.Precision.HIGHEST,
          preferred_element_type=jnp.float32,
        )
    slopes.append(slope)
  return outs, tuple(slopes)


@functools.cache
def _registered() -> str | None:
  """Compiles, loads and registers the kernels, once in a process."""
  try:
    library = _load()
    # By source: a compiled program in jax's cache calls what it was made for.
    name = f"specjax_{hashlib.sha256(_sources()).hexdigest()[:16]}"
    for own in _KERNELS:
      handler = jax.ffi.pycapsule(getattr(library, f"specjax_{own}"))
      jax.ffi.register_ffi_target(f"{name}_{own}", handler, platform="cpu")
  except Exception as error:  # Slower, but everything works without them.
    _log.info("products and attention are XLA's: %s", error)
    return None
  return name


def _sources() -> bytes:
  """Everything that the compiler will read of ours."""
  return b"\0".join(path.read_bytes() for path in sorted(_FOLDER.iterdir()))


def _load() -> ctypes.CDLL:
  """The kernels of this machine, from the cache if they are there and whole."""
  compiler = _compiler()
  path = _folder() / f"kernels-{_key(compiler)}.so"
  if not _whole(path):
    _build(compiler, path)
  return ctypes.CDLL(str(path))


def _compiler() -> list[str]:
  """The command of a C++ compiler: $CXX, or the first that is there."""
  if chosen := shlex.split(os.environ.get("CXX", "")):
    return chosen
  for name in _COMPILERS:
    if path := shutil.which(name):
      return [path]
  raise FileNotFoundError("no C++ compiler: " + ", ".join(_COMPILERS))


def _folder() -> pathlib.Path:
  """Where kernels are kept: of this user alone, for what lies there is run."""
  path = user_cache.folder() / "kernels"
  path.mkdir(parents=True, exist_ok=True, mode=0o700)
  about = path.stat()
  if about.st_uid != os.geteuid() or about.st_mode & (
    stat.S_IWGRP | stat.S_IWOTH
  ):
    raise PermissionError(f"{path}: others may write into this folder")
  return path


def _key(compiler: list[str]) -> str:
  """A name for all that the compiled kernel depends on."""
  version = _run([*compiler, "--version"])
  about = (
    *(version, *compiler, *_FLAGS),
    *(jaxlib.version.__version__, platform.machine(), _cpu()),
  )
  digest = hashlib.sha256("\0".join(about).encode())
  digest.update(_sources())
  return digest.hexdigest()[:24]


def _cpu() -> str:
  """The processor's model and what it can do, as far as Linux tells."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.processor()
  wanted = ("model", "flags", "Features", "CPU part", "isa")
  first = lines[: lines.index("")] if "" in lines else lines
  return "\n".join(line for line in first if line.startswith(wanted))


def _build(compiler: list[str], path: pathlib.Path) -> None:
  """Compiles into a file of its own, and puts it in its place at once."""
  handle, own = tempfile.mkstemp(suffix=".so", dir=path.parent)
  os.close(handle)
  try:
    include = ("-I", jax.ffi.include_dir())
    _run([*compiler, *_FLAGS, *include, str(_SOURCE), "-o", own])
    code = pathlib.Path(own).read_bytes()
    # Loaders do not mind what follows the code.
    with open(own, "ab") as file:
      file.write(hashlib.sha256(code).digest())
    os.replace(own, path)
  finally:
    pathlib.Path(own).unlink(missing_ok=True)


def _whole(path: pathlib.Path) -> bool:
  """Whether the file is there, with the digest of its code at its end.

  To load a file that was cut off can end the process.
  """
  if not path.exists():
    return False
  data = path.read_bytes()
  return hashlib.sha256(data[:-_DIGEST]).digest() == data[-_DIGEST:]


def _run(command: list[str]) -> str:
  """What the command writes; raises RuntimeError with it if it fails."""
  done = subprocess.run(
    command,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    timeout=_COMPILE_S,
    text=True,
    errors="replace",
  )
  if done.returncode:
    raise RuntimeError(f"{shlex.join(command)}: {done.stdout.strip()}")
  return done.stdout
