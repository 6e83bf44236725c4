//! Goal: the simulation keeps its guarantees, and violates everything that it doesn't guarantee.
//! Method: small programs under many seeds. A guarantee holds under every seed; each permitted outcome occurs
//! under some.

mod direct;
mod disk;
mod executor;
mod faults;
mod model;

use std::path::Path;

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, directory};

use crate::{Sim, SimDisk};

const PATH: &str = "/file";
const SECTOR: usize = crate::SECTOR_SIZE as usize;

/// Runs a program on the disk until it ends or the power is lost.
fn run<F: Future>(disk: &SimDisk, program: impl FnOnce(Env) -> F) -> Option<F::Output> {
    let sim = Sim::with_disk(disk);
    sim.run(program(sim.env()))
}

async fn create(env: &Env, path: &str) -> File {
    File::open(&env.engine, Path::new(path), OpenMode::CreateNew).await.unwrap()
}

async fn open(env: &Env, path: &str) -> settee_io::Result<File> {
    File::open(&env.engine, Path::new(path), OpenMode::Write).await
}

async fn sync_directory(env: &Env, path: &str) {
    directory::sync(&*env.engine, Path::new(path)).await.unwrap();
}

/// Creates a durable file of the given bytes.
async fn create_durable(env: &Env, path: &str, bytes: Vec<u8>) -> File {
    let file = create(env, path).await;
    file.write_and_sync_at(0, bytes.into()).await.unwrap();
    sync_directory(env, Path::new(path).parent().unwrap().to_str().unwrap()).await;
    file
}

fn sectors(count: usize, byte: u8) -> Bytes {
    Bytes::from(vec![byte; count * SECTOR])
}
