"""The version, readable without the metadata of an installation."""

VERSION = "0.1.0"
