-- A GPU may make one product of a quantized weight's and its adapter's, where that was timed to be faster: trials say whether any was made so.
-- The table is made anew, with its comments, and takes over its rows.

alter table trial_kernels rename to trial_kernels_before;

-- How the engine computed a trial. Trials from before this table have no row: they are taken for `fused`.
create table trial_kernels (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial.
    kernels text not null check (kernels in ('fused', 'tiled', 'hopper', 'reference', 'graphs')), -- Form of the ops (`--kernels`): `fused` is `auto`, `reference` plain tensor ops, the others own kernels.
    attention text check (attention in ('hopper', 'tiled', 'plain')), -- Fastest kernels that attention ran in on a GPU; null on the CPU, in plain tensor ops, and where nothing had to run.
    longer_sums integer not null default 0 check (longer_sums in (0, 1)), -- 1 where products of quantized weights took those of adapters along: on a GPU, for shapes where that was timed to be faster.
    instead_of text check (instead_of in ('fused', 'tiled', 'hopper', 'reference', 'graphs')) -- Form that was asked for, where a kernel of it failed and this safer one took its place.
) strict;

insert into trial_kernels (trial_id, kernels, attention, instead_of)
select trial_id, kernels, attention, instead_of from trial_kernels_before;

drop table trial_kernels_before;
