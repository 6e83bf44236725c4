//! What several modules use.

use std::path::Path;
use std::sync::Arc;

use settee_doc::{Database, Databases, Hash, REVISION_ID_SIZE_MAX, RevisionId};
use settee_sim::Sim;

/// A random id of a revision: a hash, a short text, one of up to 40 bytes, or one of up to the longest size.
/// `random` returns a number below its argument.
pub(crate) fn any_id(random: &mut impl FnMut(usize) -> usize) -> RevisionId {
    let number = random(1 << 30);
    let size = match random(5) {
        0 | 1 => return Hash::from(std::array::from_fn(|_| random(256) as u8)).into(),
        2 => 0,
        3 => random(40),
        _ => 100 + random(REVISION_ID_SIZE_MAX - 99),
    };
    let text = format!("{number:x}{}", "-".repeat(size.saturating_sub(8)));
    // A text of 32 bytes would have to be hex digits.
    RevisionId::parse(&if text.len() == 32 { text + "-" } else { text }).unwrap()
}

/// Runs a test with a new database, in a simulation.
pub(crate) fn with_database<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Arc<Database>) -> F) {
    let sim = Sim::new(seed);
    let env = sim.env();
    sim.run(async {
        let databases = Databases::open(env, Path::new("/data")).await.unwrap();
        test(databases.create("db").await.unwrap()).await;
    })
    .unwrap();
}
