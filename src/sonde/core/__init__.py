"""What every other room uses: errors, validation, run ids, random generators, seed statistics, formatting.

Modules here import nothing of Sonde outside this package, and most of them no torch.

Errors.  `SondeError` is a mistake that a user can fix: one line that says what is wrong and what to do.  The command
line prints it and exits with code 2.  `pick` looks a name up in a table and suggests the nearest name.

Identity.  A run's id ends in a hash of its configuration as JSON, and must outlive the code.  A table has, for each
part, the options it was first released with; those are always in the JSON.  An option that is added later is left out
while it has its default, so the ids of all earlier runs stay the same.  A part that comes to compute something else
under the same options says `version = 2`, which enters the JSON.

Random numbers.  A seed gives named generators (`init`, `order`, …), so that adding one never shifts another.  What a
network draws from PyTorch's global generators belongs to the run too.
"""
