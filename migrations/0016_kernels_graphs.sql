-- Trials may be computed from CUDA graphs (`--kernels graphs`), which changes what they cost. A check cannot be changed in place: the table
-- is made anew and takes over its rows.

alter table trial_kernels rename to trial_kernels_before;

-- How the engine computed a trial. Trials from before this table have no row: they are taken for `fused`.
create table trial_kernels (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial.
    kernels text not null check (kernels in ('fused', 'reference', 'graphs')) -- `fused`: own kernels; `reference`: plain tensor ops; `graphs`: own kernels, replayed from CUDA graphs where shapes come again (`--kernels`).
) strict;

insert into trial_kernels select trial_id, kernels from trial_kernels_before;

drop table trial_kernels_before;
