-- Which form of the ops a trial was measured with: the same setting is faster with the engine's own kernels than with plain tensor ops,
-- so that one must not take over what the other measured.

-- How the engine computed a trial. Trials from before this table have no row: they are taken for `fused`.
create table trial_kernels (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial.
    kernels text not null check (kernels in ('fused', 'reference')) -- `fused`: own kernels; `reference`: plain tensor ops (`--kernels reference`).
) strict;
