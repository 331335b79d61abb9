//! Recipes as the files that other training stacks read.
