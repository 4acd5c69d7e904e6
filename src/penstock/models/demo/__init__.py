"""The model that `penstock demo` starts from, and how it was made.

`model/` is a nano model that was warmed up on demonstrations of which most are wrong: it knows what an answer looks like and prefers the right one a
little, but samples mostly wrong ones. `model/recipe.json` says how it was made, `make_demo_model` makes it again. `run.yaml` is the config of the demo.
"""

from penstock.models.demo.recipe import RECIPE, RECIPES, TEXTWORLD_RECIPE, Recipe, make_demo_model, read_recipe

__all__ = ["RECIPE", "RECIPES", "TEXTWORLD_RECIPE", "Recipe", "make_demo_model", "read_recipe"]
