"""Small modules that every other package uses.  They import nothing of Sonde outside this package.

- `errors`: `SondeError`, and helpers for its messages
- `validated`: frozen dataclasses that validate their fields
- `run_ids`: what a run's id covers; configurations as flat keys
- `optimisers`: the configuration of an optimiser
- `signatures`: the parameters of a function as options
- `generators`: named random streams
- `seed_statistics`: statistics over seeds
- `formatting`, `html_parts`: numbers and tables for people
- `atomic`: files that are complete or absent
- `moved_modules`: old module paths
"""
