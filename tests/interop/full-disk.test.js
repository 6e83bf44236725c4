// Goal: on a full disk writes are refused with 507 and everything else works: acknowledged documents stay
// readable, and writes succeed again once there is space.
// Method: the server's directory is on a small tmpfs, in which `lib/full-disk.js` runs.

import { test } from 'node:test';
import { runWithMounts } from './lib/mounts.js';

test('a full disk loses nothing, and writes succeed again once there is space', (t) =>
  runWithMounts(t, 'full-disk.js', 'tmpfs'));
