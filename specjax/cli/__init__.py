"""The commands: thin mains over specjax.api and specjax.jobs."""
