"""The pytest plugin: what tests of an application get without asking."""
