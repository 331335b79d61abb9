-- Trainings whose precision changes on their way (`precision_schedule`) say at which steps it was decided, on what, and to what end.

-- What trials decided on their precision while they trained.
create table precision_decision (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    step integer not null, -- Step of the training phase at whose end it was decided.
    precision text not null, -- What the steps from the next one on compute in.
    cause text not null check (cause in ('schedule', 'noise', 'signal', 'undecided', 'overflows')), -- Why: the schedule names the step, gradients are mostly noise or mostly signal, neither is certain (as before), or several overflowed.
    noise_scale real, -- Noise scale of the gradients in target tokens; null where it was not asked for or has no end.
    step_targets real not null, -- Mean target tokens of the steps that decided.
    overflows integer not null, -- Steps among them whose gradients overflowed.
    primary key (trial_id, step)
) strict, without rowid;
