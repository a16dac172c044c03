"""The store of `sharding.watch`, as a dict that processes of one test share."""


class Store:
  def __init__(self):
    self.data = {}
    self.gone = False

  def put(self, key, data, *, replace=False):
    self._check()
    if key in self.data and not replace:
      return False
    self.data[key] = data
    return True

  def under(self, prefix):
    self._check()
    return {
      key.removeprefix(prefix): data
      for key, data in self.data.items()
      if key.startswith(prefix)
    }

  def is_gone(self):
    return self.gone

  def _check(self):
    if self.gone:
      raise RuntimeError("UNAVAILABLE")
