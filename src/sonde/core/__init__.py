"""What everything else uses: errors, validated options, run ids, random generators, formatting, atomic files.

Modules here import nothing of Sonde outside this package.
"""
