"""The policies of several arms against each other: figures and their page; without torch, for both sides."""
