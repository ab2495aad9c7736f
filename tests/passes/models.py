"""Whole models as one spec, by hand: what the front end's lowering gives, in a readable form."""

MLP = """kernel mlp(x: bf16[m=193,k=135], w: bf16[n=200,k], b: bf16[n], w2: bf16[p=64,n], b2: bf16[p], g: bf16[p],
               be: bf16[p]) -> (y: bf16[m,p]) {
  t: f32[m,n] = sum(k) x[m,k] * w[n,k]
  l: bf16[m,n] = t[m,n] + b[n]
  a: bf16[m,n] = gelu(l[m,n])
  t2: f32[i=193,j=64] = sum(n) a[i,n] * w2[j,n]
  l2: bf16[i,j] = t2[i,j] + b2[j]
  s: f32[c=193] = sum(d=64) l2[c,d]
  mean: f32[c] = s[c] / 64.0
  v: f32[e=193] = sum(f=64) (l2[e,f] - mean[e]) * (l2[e,f] - mean[e])
  r: f32[e] = rsqrt(v[e] / 64.0 + 1e-5)
  y[m,p] = (l2[m,p] - mean[m]) * r[m] * g[p] + be[p]
}"""

# conv + batch norm + relu, conv + residual + relu, max pool, global average pool, linear
CONVNET = """kernel convnet(x: f32[b=2,c=5,h=19,w=17], f: f32[o=5,c,r=3,s=3], wt: f32[o], bs: f32[o], mu: f32[o],
               var: f32[o], f2: f32[o,c,r,s], fc: f32[n=7,o]) -> (y: f32[b,n]) {
  t: f32[b,o,i=19,j=17] = sum(c,r,s) x[b,c,i+r-1,j+s-1 | 0.0] * f[o,c,r,s]
  inv: f32[o] = rsqrt(var[o] + 1e-5)
  scale: f32[o] = wt[o] * inv[o]
  bn: f32[b,o,i,j] = (t[b,o,i,j] - mu[o]) * scale[o] + bs[o]
  re: f32[b,o,i,j] = relu(bn[b,o,i,j])
  t2: f32[b,o,i,j] = sum(c,r,s) re[b,c,i+r-1,j+s-1 | 0.0] * f2[o,c,r,s]
  ad: f32[b,o,i,j] = t2[b,o,i,j] + x[b,o,i,j]
  re2: f32[b,o,i,j] = relu(ad[b,o,i,j])
  mp: f32[b,o,u=9,v=8] = max(q=3,z=3) re2[b,o,2*u+q,2*v+z]
  sm: f32[b,o] = sum(u,v) mp[b,o,u,v]
  av: f32[b,o] = sm[b,o] / 72.0
  y[b,n] = sum(o) av[b,o] * fc[n,o]
}"""

# RMS norm, q/k/v projections, RoPE by slices and cat, GQA with causal mask, output projection + residual, SwiGLU.
DECODER = """kernel decoder(x: f32[b=1,s=33,c=64], g: f32[c], wq: f32[nq=64,c], wk: f32[nk=32,c], wv: f32[nk,c],
              wo: f32[c,nq], co: f32[s,d=16], si: f32[s,d], g2: f32[c], w1: f32[m=96,c], w3: f32[m,c],
              w2: f32[c,m]) -> (y: f32[b,s,c]) {
  sq: f32[b,s,c] = x[b,s,c] * x[b,s,c]
  ms: f32[b,s] = sum(c) sq[b,s,c]
  keep: f32[b,s,u=1] = ms[b,s]
  rs: f32[b,s,u] = rsqrt(keep[b,s,u] / 64.0 + 1e-6)
  xn: f32[b,s,c] = x[b,s,c] * rs[b,s,0]
  n: f32[b,s,c] = g[c] * xn[b,s,c]
  q0: f32[b,s,nq] = sum(c) n[b,s,c] * wq[nq,c]
  q1: f32[b,s,h=4,d] = q0[b,s,h*16+d]
  q: f32[b,h,s,d] = q1[b,s,h,d]
  k0: f32[b,s,nk] = sum(c) n[b,s,c] * wk[nk,c]
  k1: f32[b,s,e=2,d] = k0[b,s,e*16+d]
  k: f32[b,e,s,d] = k1[b,s,e,d]
  v0: f32[b,s,nk] = sum(c) n[b,s,c] * wv[nk,c]
  v1: f32[b,s,e,d] = v0[b,s,e*16+d]
  v: f32[b,e,s,d] = v1[b,s,e,d]
  qlow: f32[b,h,s,l=8] = q[b,h,s,l]
  qhigh: f32[b,h,s,l] = q[b,h,s,l+8]
  qneg: f32[b,h,s,l] = -qhigh[b,h,s,l]
  qrot: f32[b,h,s,d] = where(d < 8, qneg[b,h,s,d | 0.0], qlow[b,h,s,d-8 | 0.0])
  qc: f32[b,h,s,d] = q[b,h,s,d] * co[s,d]
  qs: f32[b,h,s,d] = qrot[b,h,s,d] * si[s,d]
  qr: f32[b,h,s,d] = qc[b,h,s,d] + qs[b,h,s,d]
  klow: f32[b,e,s,l] = k[b,e,s,l]
  khigh: f32[b,e,s,l] = k[b,e,s,l+8]
  kneg: f32[b,e,s,l] = -khigh[b,e,s,l]
  krot: f32[b,e,s,d] = where(d < 8, kneg[b,e,s,d | 0.0], klow[b,e,s,d-8 | 0.0])
  kc: f32[b,e,s,d] = k[b,e,s,d] * co[s,d]
  ks: f32[b,e,s,d] = krot[b,e,s,d] * si[s,d]
  kr: f32[b,e,s,d] = kc[b,e,s,d] + ks[b,e,s,d]
  mask: bool[s,t=33] = t <= s
  kx: f32[b,h,t,d] = kr[b,h // 2,t,d]
  vx: f32[b,h,t,d] = v[b,h // 2,t,d]
  sc0: f32[b,h,s,t] = sum(d) qr[b,h,s,d] * kx[b,h,t,d]
  sc: f32[b,h,s,t] = where(mask[s,t], sc0[b,h,s,t] * 0.25, -inf)
  mx: f32[b,h,s] = max(t) sc[b,h,s,t]
  ex: f32[b,h,s,t] = exp(sc[b,h,s,t] - mx[b,h,s])
  se: f32[b,h,s] = sum(t) ex[b,h,s,t]
  p: f32[b,h,s,t] = ex[b,h,s,t] / se[b,h,s]
  at: f32[b,h,s,d] = sum(t) p[b,h,s,t] * vx[b,h,t,d]
  tr: f32[b,s,h,d] = at[b,h,s,d]
  fl: f32[b,s,nq] = tr[b,s,nq // 16,nq % 16]
  o: f32[b,s,c] = sum(nq) fl[b,s,nq] * wo[c,nq]
  res: f32[b,s,c] = x[b,s,c] + o[b,s,c]
  sq2: f32[b,s,c] = res[b,s,c] * res[b,s,c]
  ms2: f32[b,s] = sum(c) sq2[b,s,c]
  rs2: f32[b,s] = rsqrt(ms2[b,s] / 64.0 + 1e-6)
  n2: f32[b,s,c] = g2[c] * (res[b,s,c] * rs2[b,s])
  gate: f32[b,s,m] = sum(c) n2[b,s,c] * w1[m,c]
  act: f32[b,s,m] = silu(gate[b,s,m])
  up: f32[b,s,m] = sum(c) n2[b,s,c] * w3[m,c]
  gu: f32[b,s,m] = act[b,s,m] * up[b,s,m]
  dn: f32[b,s,c] = sum(m) gu[b,s,m] * w2[c,m]
  y[b,s,c] = res[b,s,c] + dn[b,s,c]
}"""

GROUP_NORM = """kernel group_norm(x: f32[b=2,c=12,h=7,w=5], g: f32[c], be: f32[c]) -> (y: f32[b,c,h,w]) {
  xs: f32[b,n=3,q=140] = x[b, n*4 + q // 35, q // 5 % 7, q % 5]
  s: f32[b,n] = sum(q) xs[b,n,q]
  mean: f32[b,n] = s[b,n] / 140.0
  v: f32[b,n] = sum(q) (xs[b,n,q] - mean[b,n]) * (xs[b,n,q] - mean[b,n])
  r: f32[b,n] = rsqrt(v[b,n] / 140.0 + 1e-5)
  nr: f32[b,n,q] = (xs[b,n,q] - mean[b,n]) * r[b,n]
  z: f32[b,c,h,w] = nr[b, c // 4, (c % 4 * 7 + h)*5 + w]
  y[b,c,h,w] = z[b,c,h,w] * g[c] + be[c]
}"""

# Batch norm with batch statistics: few, very long rows; the running statistics are outputs too.
BATCH_NORM_TRAIN = """kernel bn(x: f32[b=32,c=16,h=56,w=56], g: f32[c], be: f32[c],
               rm: f32[c]) -> (y: f32[b,c,h,w], m2: f32[c]) {
  s: f32[c] = sum(b,h,w) x[b,c,h,w]
  mean: f32[c] = s[c] / 100352.0
  v: f32[c] = sum(b,h,w) (x[b,c,h,w] - mean[c]) * (x[b,c,h,w] - mean[c])
  r: f32[c] = rsqrt(v[c] / 100352.0 + 1e-5)
  y[b,c,h,w] = (x[b,c,h,w] - mean[c]) * r[c] * g[c] + be[c]
  m2[c] = rm[c] * 0.9 + mean[c] * 0.1
}"""

# A linear layer whose result is permuted before the rest of its epilogue, as heads are.
HEADS = """kernel heads(x: f32[b=2,s=9,c=24], w: f32[n=32,c], bias: f32[n],
               k: f32[b,h=4,s,d=8]) -> (y: f32[b,h,s,t=9]) {
  t0: f32[b,s,n] = sum(c) x[b,s,c] * w[n,c]
  t1: f32[b,s,n] = t0[b,s,n] + bias[n]
  t2: f32[b,s,h,d] = t1[b,s,h*8+d]
  t3: f32[b,h,s,d] = t2[b,s,h,d]
  q: f32[b,h,s,d] = t3[b,h,s,d] * 0.125
  y[b,h,s,t] = sum(d) q[b,h,s,d] * k[b,h,t,d]
}"""

# The same result, permuted, as an output of the model.
HEADS_OUT = """kernel heads_out(x: f32[b=2,s=9,c=24], w: f32[n=32,c]) -> (y: f32[b,h=4,s,d=8]) {
  t0: f32[b,s,n] = sum(c) x[b,s,c] * w[n,c]
  y[b,h,s,d] = t0[b,s,h*8+d]
}"""

# Padding, slice and padding again: guards that may not move inwards.
GUARDS = """kernel guards(x: f32[b=2,h=9], f: f32[o=3,r=3]) -> (y: f32[b,o,i=7], z: f32[b,j=13]) {
  sl: f32[b,h2=5] = x[b,h2+2]
  pad: f32[b,h3=9] = sl[b,h3-2 | 0.0]
  re: f32[b,h3] = relu(pad[b,h3])
  y[b,o,i] = sum(r) re[b,i+r] * f[o,r]
  one: f32[b,h] = x[b,h] + 1.0
  z[b,j] = one[b,j-2 | 5.0]
}"""

SCAN = """kernel scan(x: f32[m=5,k=40], w: f32[k]) -> (y: f32[m,k]) {
  a: f32[m,k] = x[m,k] * w[k]
  c: f32[m,k] = scan sum(k) a[m,k]
  y[m,k] = tanh(c[m,k])
}"""

MODELS = {
    "mlp": MLP,
    "convnet": CONVNET,
    "decoder": DECODER,
    "group_norm": GROUP_NORM,
    "heads": HEADS,
    "heads_out": HEADS_OUT,
    "guards": GUARDS,
    "scan": SCAN,
}
