"""What a person sees of stored runs: figures, the report, the live page, the playground, notebooks, exports."""
