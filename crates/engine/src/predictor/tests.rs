//! Costs of settings, on models that are known from their dimensions.

mod host_updates;
mod mixers;
mod own_stack;
mod published;
mod random_mixtures;
mod random_recipes;
mod step_costs;
