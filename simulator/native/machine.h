/* Runs the waves of one workgroup after another, each to its next barrier or its end.

   What it checks: every address against its buffer and its alignment, bytes and registers never written, registers
   with an outstanding memory operation, LDS races between barriers, barriers that not all waves reach, endless loops.
   The checks may be stricter than those of the NumPy tier, never weaker. Whatever they find, and whatever instruction
   has no form here, ends the run with a code: the caller then puts memory back and lets the NumPy tier judge. */

/* ---- control */

static u64 wide_source(Machine *m, const Wave *w, const Ins *i) {
  return scalar_word(m, w, &i->w[0]) | (u64)scalar_word(m, w, &i->w[1]) << 32;
}
static int save_exec(Machine *m, Wave *w, const Ins *i) {
  u64 s = wide_source(m, w, i), e = w->exec, r = 0;
  switch (i->p[1]) {
  case 0: r = s & e; break;
  case 1: r = s | e; break;
  case 2: r = s ^ e; break;
  case 3: r = ~s & e; break;
  case 4: r = s & ~e; break;
  case 5: r = ~s | e; break;
  case 6: r = s | ~e; break;
  case 7: r = ~(s & e); break;
  case 8: r = ~(s | e); break;
  case 9: r = ~(s ^ e); break;
  }
  for (int k = 0; k < 2; k++) {
    if (i->w[k].kind != W_SCALAR || !in_set(w->stale, SCALARS + i->w[k].index)) continue;
    u32 own = w->SP[i->w[k].index], half = (u32)(e >> 32 * k);
    if (i->p[1] == 0 || i->p[1] == 3 ? own & half : own) return UNWRITTEN;
  }
  set_pair(w, EXEC_LO, r);
  set_pair(w, i->p[0], i->p[2] ? r : e);
  w->S[SCC] = r != 0;
  for (int k = 0; k < i->target_count; k++) stain_scalar(w, m->target_list[i->target_at + k], 0);
  return 0;
}
static int taken(const Wave *w, int condition) {
  switch (condition) {
  case 0: return !w->S[SCC];
  case 1: return w->S[SCC] != 0;
  case 2: return pair_of(w, 106) == 0;
  case 3: return pair_of(w, 106) != 0;
  case 4: return w->exec == 0;
  }
  return w->exec != 0;
}
static int jump_to(Machine *m, Wave *w, u64 target) {
  u64 index = (target - CODE_BASE) / 8;
  if (target < CODE_BASE || (target - CODE_BASE) % 8 || index >= (u64)m->code_count) return WILD_JUMP;
  w->pc = (i32)index;
  return 0;
}
static int pending_write(const Wave *w) {
  for (int k = 0; k < w->length[1]; k++) if (w->queue[1][(w->head[1] + k) % RING].tag == TAG_DS_WRITE) return 1;
  return 0;
}

static int perform(Machine *m, Wave *w, const Ins *i) {
  switch (i->op) {
  case OP_ALU: if (i->scalar) alu_scalar(m, w, i); else alu_vector(m, w, i); return 0;
  case OP_NOP: return 0;
  case OP_JUMP: w->pc = i->jump; return 0;
  case OP_BRANCH: if (taken(w, i->p[0])) w->pc = i->jump; return 0;
  case OP_END: return ENDED;
  case OP_BARRIER: return m->waves_per_group > 1 && pending_write(w) ? HAZARD : AT_BARRIER;
  case OP_LOAD_LDS: return load_lds(m, w, i);
  case OP_WAIT: if (m->check_waits) wait_for(m, w, i->p[0], i->p[1]); return m->found;
  case OP_SAVEEXEC: return save_exec(m, w, i);
  case OP_LOAD: return load(m, w, i);
  case OP_STORE: return store(m, w, i);
  case OP_LDS_READ: return lds_read(m, w, i);
  case OP_LDS_WRITE: return lds_write(m, w, i);
  case OP_SMEM: return scalar_load(m, w, i);
  case OP_MFMA: return matrix(m, w, i);
  case OP_READLANE: return read_lane(m, w, i);
  case OP_WRITELANE: return write_lane(m, w, i);
  case OP_SWAP: return swap(m, w, i);
  case OP_PERMUTE: case OP_SWIZZLE: return permute(m, w, i);
  case OP_FENCE: return issue(m, w, i, 0, TAG_STORE, 0);
  case OP_GETPC: set_pair(w, i->p[0], CODE_BASE + (u64)w->pc * 8); stain_targets(m, w, i, 0); return 0;
  case OP_SETPC: {
    u64 target = pair_of(w, i->p[1]);
    if (i->p[0] >= 0) { set_pair(w, i->p[0], CODE_BASE + (u64)w->pc * 8); stain_targets(m, w, i, 0); }
    return jump_to(m, w, target);
  }
  }
  return REFUSED;
}

/* until a barrier, the end, or a code that ends the run */
static int run_wave(Machine *m, Wave *w) {
  for (;;) {
    if ((u32)w->pc >= (u32)m->code_count) return WILD_JUMP;
    const Ins *i = &m->code[w->pc];
    m->where = w->pc;
    if (i->starts) m->counts[w->pc]++;
    if (++w->executed > m->limit) return LIMIT;
    u64 met = 0;
    for (int j = 0; j < SET_WORDS; j++) met |= w->watch[j] & i->both[j];
    if (met) {
      if (m->check_waits && hazard(w, i)) return HAZARD;
      u64 old = 0;
      for (int j = 0; j < SET_WORDS; j++) old |= w->stale[j] & i->both[j];
      if (old && i->op != OP_REFUSED) { int bad = taint(m, w, i); if (bad) return bad; }
    }
    w->pc++;
    int r = perform(m, w, i);
    if (r) return r;
  }
}

/* ---- entry */

int kvc_wave_bytes(void) { return (int)sizeof(Wave); }
int kvc_sizes(int which) {
  const int sizes[] = {sizeof(Ins), sizeof(Buffer), sizeof(Matrix), sizeof(Dpp), sizeof(Stats), sizeof(Machine)};
  return sizes[which];
}

static void start(Machine *m, Wave *w, int number, const u32 *scalars, const u32 *ids, u64 exec, const u64 *stale) {
  u32 *V = w->V, *P = w->P;
  memset(w, 0, __builtin_offsetof(Wave, queue));
  w->V = V;
  w->P = P;
  w->number = number;
  w->pc = m->entry;
  for (int k = 0; k < m->vector_rows * LANES; k++) V[k] = 0xdeadbeefu;
  memset(P, 255, 4u * (u32)m->vector_rows * LANES);
  memset(w->SP, 255, sizeof w->SP);
  memcpy(w->S, scalars, 4 * 128);
  memcpy(V, ids, 4 * LANES);
  memcpy(w->stale, stale, sizeof w->stale);
  watch_again(w);
  set_pair(w, EXEC_LO, exec);
}

/* One workgroup. `scalars` [waves, 128], `ids` [waves, 64], `exec` [waves], `stale` a register set.
   Returns 0 or the code that ended the run; `where` is then the instruction. */
int kvc_run(Machine *m, const u32 *scalars, const u32 *ids, const u64 *exec, const u64 *stale) {
  int n = m->waves_per_group;
  memset(m->lds, 0, (u32)m->lds_bytes);
  if (m->flights) memset(m->lds_flights, 0, 4u * (u32)(m->lds_bytes / m->granule + 1));
  m->flights = m->found = 0;
  memset(m->lds_valid, m->check_unwritten ? 0 : 1, (u32)m->lds_bytes);
  for (int k = 0; k < n; k++) start(m, &m->waves[k], k, scalars + 128 * k, ids + LANES * k, exec[k], stale);
  for (;;) {
    int waiting = 0, ended = 0, place = -1;
    next_epoch(m);
    if (m->found) return m->found;
    for (int k = 0; k < n; k++) {
      Wave *w = &m->waves[(k + m->seed) % n];
      if (w->state != ENDED) {
        int r = run_wave(m, w);
        if (r != AT_BARRIER && r != ENDED) return r;
        w->state = r;
      }
      if (w->state == ENDED) { ended++; continue; }
      if (place >= 0 && place != w->pc) return BARRIER;
      place = w->pc;
      waiting++;
    }
    if (!waiting) { next_epoch(m); return m->found; }
    if (ended) return BARRIER;
  }
}

/* One function on lanes, for the tests that compare the forms with the opcode table. */
void kvc_call(int fn, u32 *const *d, const u32 *const *s, int n, u32 imm) { kvc_alu[fn](d, s, n, imm); }
