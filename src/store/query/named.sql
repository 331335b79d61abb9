-- front: the trials that no other trial beats in every objective
select trial, throughput, round(peak_memory / 1073741824.0, 3) as peak_gib, loss, rank, micro_batch, precision,
       gradient_checkpointing, optimizer, learning_rate
from pareto_front where study = ?1 order by throughput desc

-- best: the best trial in each objective
select metric, direction, trial, value from best_by_objective where study = ?1

-- fastest: the ten trials with the highest throughput
select trial, throughput, round(peak_memory / 1073741824.0, 3) as peak_gib, loss, micro_batch, gradient_accumulation,
       sequence_length, packing, precision, gradient_checkpointing
from trial_summary where study = ?1 and throughput is not null order by throughput desc limit 10

-- smallest: the ten trials with the lowest peak memory
select trial, round(peak_memory / 1073741824.0, 3) as peak_gib, throughput, loss, micro_batch, sequence_length, precision,
       gradient_checkpointing, optimizer
from trial_summary where study = ?1 and peak_memory is not null order by peak_memory limit 10

-- lowest-loss: the ten trials with the lowest held-out loss
select trial, loss, throughput, round(peak_memory / 1073741824.0, 3) as peak_gib, rank, alpha, learning_rate, target_modules,
       optimizer, micro_batch * gradient_accumulation as global_batch
from trial_summary where study = ?1 and loss is not null order by loss limit 10

-- states: the number of trials by outcome, and their cost
select state, count(*) as trials, round(total(wall_s), 1) as wall_s, round(avg(wall_s), 2) as wall_s_each
from trial join study on study.id = trial.study_id where study.name = ?1 group by state order by trials desc

-- failures: the trials that failed, with reason and phase
select number as trial, trial.reason, phase, round(wall_s, 1) as wall_s, detail
from trial join study on study.id = trial.study_id where study.name = ?1 and state = 'failed' order by number

-- out-of-memory: settings that ran out of memory, with the bytes in use
select number as trial, phase, micro_batch, sequence_length, precision, gradient_checkpointing, optimizer,
       detail ->> '$.in_use_bytes' as in_use_bytes, detail ->> '$.limit_bytes' as limit_bytes
from trial join study on study.id = trial.study_id
where study.name = ?1 and trial.reason = 'out_of_memory' order by number

-- values: each value of each sampled parameter with the metrics of the trials that had it
select name, value, count(*) as trials, round(avg(throughput), 1) as throughput,
       round(avg(peak_memory) / 1073741824.0, 3) as peak_gib, round(min(loss), 4) as best_loss, round(avg(loss), 4) as loss
from (
    select p.name, p.value,
           (select value from counted_metric where trial_id = p.trial_id and name = 'throughput') as throughput,
           (select value from counted_metric where trial_id = p.trial_id and name = 'peak_memory') as peak_memory,
           (select value from counted_metric where trial_id = p.trial_id and name = 'loss') as loss
    from param as p join trial on trial.id = p.trial_id join study on study.id = trial.study_id
    where study.name = ?1 and trial.state = 'complete'
)
group by name, value having count(*) > 1 or (select count(distinct value) from param) < 100
order by name, value

-- progress: the best of each objective after each trial that improved it
select trial, metric, value from (
    select t.number as trial, o.metric, m.value, o.position,
           case o.direction when 'maximize' then -m.value else m.value end as cost,
           min(case o.direction when 'maximize' then -m.value else m.value end) over (
               partition by o.metric order by t.number rows between unbounded preceding and 1 preceding
           ) as before
    from study join study_objective as o on o.study_id = study.id
    join trial as t on t.study_id = study.id and t.state = 'complete'
    join counted_metric as m on m.trial_id = t.id and m.name = o.metric
    where study.name = ?1
)
where before is null or cost < before order by trial, position

-- learning-curves: the held-out loss of every trial at each evaluation
select trial.number as trial, e.step, e.tokens, e.loss
from study join trial on trial.study_id = study.id join evaluation as e on e.trial_id = trial.id
where study.name = ?1 order by trial.number, e.step

-- step-times: where the seconds of a measured step go, for each trial
select trial.number as trial, count(*) as steps, round(avg(s.total_s), 5) as step_s, round(avg(data_s), 5) as data_s,
       round(avg(forward_s), 5) as forward_s, round(avg(backward_s), 5) as backward_s,
       round(avg(optimizer_s), 5) as optimizer_s
from study join trial on trial.study_id = study.id join step as s on s.trial_id = trial.id and s.phase = 'profile'
where study.name = ?1 group by trial.number

-- longest: the ten trials that took the most time
select trial.number as trial, trial.state, round(wall_s, 1) as wall_s, started_at, trial.rank, micro_batch, sequence_length
from trial join study on study.id = trial.study_id where study.name = ?1 order by wall_s desc limit 10

-- inherited: values that trials took from others whose settings could not have changed them
select part, count(*) as trials, count(distinct source) as sources from trial_inherited where study = ?1 group by part

-- machines: where the trials ran
select machine.host, machine.device, machine.cpu, machine.cpu_cores,
       round(machine.device_memory_bytes / 1073741824.0, 1) as memory_gib, machine.driver
from study join machine on machine.id = study.machine_id where study.name = ?1
