//! A log that ends, stops or waits holds nothing that others need, and leaves nothing behind. Each
//! file says how it looks at one way in which it might.

mod blocking;
mod closing;
mod locking;
mod pool;
mod timers;
