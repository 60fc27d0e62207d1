//! Walks through every state that a model can reach, breadth first, so that the trace to a broken
//! check is the shortest there is. Knows nothing of what it walks through.

use std::{
    collections::{HashSet, VecDeque, hash_map::DefaultHasher},
    fmt::Debug,
    hash::{Hash, Hasher},
    time::Instant,
};

/// What must hold in every state: name, and whether it does.
pub type Check<S> = (&'static str, fn(&S) -> bool);

/// Something that goes from state to state by actions.
pub trait Model {
    type State: Clone + Hash;
    type Action: Clone + Debug;

    fn start(&self) -> Self::State;
    /// What can happen in a state.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;
    /// The state after it.
    fn next(&self, state: &Self::State, action: &Self::Action) -> Self::State;
    /// What must hold in every state.
    fn checks(&self) -> Vec<Check<Self::State>>;
    /// What must come about once nothing goes wrong any more; the complaint if it does not.
    fn calm(&self, state: &Self::State) -> Result<(), String>;
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub states: usize,
    pub transitions: usize,
    pub calmed: usize,
    pub deepest: usize,
    /// No state was left out for want of room.
    pub whole: bool,
}

/// Walks through at most `limit` states; looks from every `calm_every`th on whether it calms down.
///
/// # Panics
/// With the shortest way to a state in which a check does not hold.
pub fn explore<M: Model>(name: &str, model: &M, limit: usize, calm_every: usize) -> Seen {
    let begun = Instant::now();
    let checks = model.checks();
    let mut seen = Seen { whole: true, ..Seen::default() };
    let mut known = HashSet::new();
    let mut ways: Vec<(usize, Option<M::Action>)> = vec![(0, None)];
    let mut ahead = VecDeque::from([(model.start(), 0, 0)]);
    known.insert(print_of(&ahead[0].0));
    while let Some((state, at, depth)) = ahead.pop_front() {
        seen.states += 1;
        seen.deepest = depth;
        for (check, holds) in &checks {
            assert!(holds(&state), "{name}: {check} does not hold after\n{}", way(&ways, at));
        }
        if seen.states.is_multiple_of(calm_every) {
            seen.calmed += 1;
            if let Err(complaint) = model.calm(&state) {
                panic!("{name}: {complaint} though all is calm after\n{}", way(&ways, at));
            }
        }
        for action in model.actions(&state) {
            seen.transitions += 1;
            let next = model.next(&state, &action);
            let print = print_of(&next);
            if known.contains(&print) {
                continue;
            }
            if known.len() >= limit {
                seen.whole = false;
                continue;
            }
            known.insert(print);
            ways.push((at, Some(action)));
            ahead.push_back((next, ways.len() - 1, depth + 1));
        }
    }
    println!(
        "{name}: {} states, {} transitions, {} deep, {} calmed, {}, {:.1} s",
        seen.states,
        seen.transitions,
        seen.deepest,
        seen.calmed,
        if seen.whole { "all there are" } else { "up to the limit" },
        begun.elapsed().as_secs_f64()
    );
    seen
}

/// Goes so many ways of at most `length` actions, each chosen by chance, and looks at the end of
/// each whether it calms down: deep where [`explore`] is wide.
///
/// # Panics
/// With a way to a state in which a check does not hold.
pub fn wander<M: Model>(name: &str, model: &M, (walks, length): (usize, usize), seed: u64) {
    let begun = Instant::now();
    let checks = model.checks();
    let (mut transitions, mut chance) = (0, seed);
    for walk in 0..walks {
        let (mut state, mut way) = (model.start(), vec![]);
        for _ in 0..length {
            let mut actions = model.actions(&state);
            if actions.is_empty() {
                break;
            }
            let action = actions.swap_remove(below(&mut chance, actions.len()));
            state = model.next(&state, &action);
            transitions += 1;
            way.push(format!("  {action:?}"));
            for (check, holds) in &checks {
                let way = || way.join("\n");
                assert!(
                    holds(&state),
                    "{name}: {check} does not hold in walk {walk} of seed {seed}, after\n{}",
                    way()
                );
            }
        }
        if let Err(complaint) = model.calm(&state) {
            let way = way.join("\n");
            panic!(
                "{name}: {complaint} though all is calm in walk {walk} of seed {seed}, after\n{way}"
            );
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{name}: {walks} walks by chance, {transitions} transitions, {walks} calmed, {seconds:.1} s"
    );
}

/// A number below `n`, by SplitMix64.
fn below(chance: &mut u64, n: usize) -> usize {
    *chance = chance.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *chance;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let n = u64::try_from(n).expect("a small number");
    usize::try_from((z ^ (z >> 31)) % n).expect("below a small number")
}

/// A number from the environment, or another.
pub fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

fn print_of(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

fn way<A: Debug>(ways: &[(usize, Option<A>)], mut at: usize) -> String {
    let mut steps = vec![];
    while let (before, Some(action)) = &ways[at] {
        steps.push(format!("  {action:?}"));
        at = *before;
    }
    steps.reverse();
    steps.join("\n")
}
