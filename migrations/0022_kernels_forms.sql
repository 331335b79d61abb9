-- Trials may be computed with some of the engine's kernels only (`--kernels tiled`, `hopper`), attention takes the kernels that a GPU has, and a
-- trial whose kernels failed is repeated in a safer form. A check cannot be changed in place: the table is made anew and takes over its rows.

alter table trial_kernels rename to trial_kernels_before;

-- How the engine computed a trial. Trials from before this table have no row: they are taken for `fused`.
create table trial_kernels (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial.
    kernels text not null check (kernels in ('fused', 'tiled', 'hopper', 'reference', 'graphs')), -- Form of the ops (`--kernels`): `fused` is `auto`, `reference` plain tensor ops, the others own kernels.
    attention text check (attention in ('hopper', 'tiled', 'plain')), -- Fastest kernels that attention ran in on a GPU; null on the CPU, in plain tensor ops, and where nothing had to run.
    instead_of text check (instead_of in ('fused', 'tiled', 'hopper', 'reference', 'graphs')) -- Form that was asked for, where a kernel of it failed and this safer one took its place.
) strict;

insert into trial_kernels (trial_id, kernels) select trial_id, kernels from trial_kernels_before;

drop table trial_kernels_before;
