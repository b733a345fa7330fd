import assert from "node:assert/strict";
import { test } from "node:test";
import type { KernelsView, KernelView } from "../src/api/types";
import { alikeWords, besideWords, callsOf, callsWords, cutMiddle, hasChanged, isUneven, kernelName, lagOf, lagWords, moreOf, nameAndShape, ownColumn, ownMedian, ratioOfSlowest, shareOfStep, shortName, slowerFirst, slowestInAll, slowRankFigures, slowRanksOf, slowRankWords, spark, timedWords, trendWords, weighed } from "../src/logic/kernels";
import { calmWords } from "../src/logic/stragglers";
import { fine } from "../src/logic/text";

const NOW = 1_760_000_000;
const KERNEL: KernelView = {
  name: "gemm<float><<<96,1,1 256,1,1>>>", share: 0.5, ranks: 2, median: 0.003, tail: 0.003, fastest: 0.003, slowest_rank: 1, slowest_host: "a",
  slowest: 0.003, relative: 0.9, change: 1.5, slower_since: NOW - 20, trend: [0.002, null, 0.002, 0.003], slowest_trend: [], slowest_ranks: [], uneven_since: null, straggler: null,
};
const POINTS = [NOW - 40, NOW - 30, NOW - 20, NOW];

test("the straggler has a column of its own, also where its kernels are as fast as those of the others", () => {
  const of = (facts: Partial<KernelView>): KernelView => ({ ...KERNEL, ranks: 8, median: 0.002, slowest: 0.004, slowest_rank: 3, relative: 0.5, uneven_since: NOW, ...facts });
  const table = { kernels: [of({ straggler: 0.003 }), of({ slowest_rank: 5, straggler: 0.004 }), of({})], straggler: 5 };
  assert.equal(ownColumn(table), 5);
  assert.deepEqual(table.kernels.map((kernel) => ownMedian(kernel, 5)), [{ seconds: 0.003, ratio: 1.5 }, { seconds: 0.004, ratio: 2 }, null]);
  assert.equal(ownColumn({ kernels: [of({}), of({})], straggler: null }), 3, "it is slow in all of them");
  assert.equal(ownColumn({ kernels: [of({}), of({ slowest_rank: 4 })], straggler: null }), null);
  assert.equal(ownMedian(of({}), null), null);
  const beside = (...straggler: number[]) => besideWords(straggler.map((seconds) => of({ median: 0.002, straggler: seconds })), 5);
  assert.deepEqual([beside(0.00198, 0.002), beside()], ["; rank 5 now 0.99 to 1.00 times that", ""]);
  assert.equal(ownMedian(of({ ranks: 2, median: 0.003, slowest: 0.004 }), 3)!.ratio, 2, "of two ranks the other's");
});

test("a sparkline reaches from 0 to some room above the largest value, with gaps, and the moment of the change", () => {
  const { median, slowest, changed } = spark(KERNEL, POINTS, 100, 30);
  assert.deepEqual([median, slowest], [["50.0,14.0 100.0,14.0 100.0,6.0"], []]);
  assert.equal(changed, 50);
});

test("the slowest rank's line is its own since it is the slowest, and another's before", () => {
  const kernel = { ...KERNEL, trend: [0.002, 0.002, 0.002, 0.002], median: 0.002, slowest: 0.004, slowest_trend: [0.002, 0.0022, 0.004, 0.004], slowest_ranks: [0, 0, 1, 1], uneven_since: POINTS[2]! };
  const { median, slowest, others, ends, uneven } = spark(kernel, POINTS, 100, 30);
  assert.deepEqual(median, ["0.0,18.0 25.0,18.0 25.0,18.0 50.0,18.0 50.0,18.0 100.0,18.0 100.0,18.0"]);
  assert.deepEqual(slowest, ["50.0,16.8 50.0,6.0 100.0,6.0 100.0,6.0"], "it rises in its own line, at the report in which it is seen");
  assert.deepEqual(others, ["0.0,18.0 25.0,18.0 25.0,16.8 50.0,16.8"], "level up to there");
  assert.deepEqual(spark({ ...kernel, slowest_ranks: [0, 1, 1, 1] }, POINTS, 100, 30).slowest, ["25.0,18.0 25.0,16.8 50.0,16.8 50.0,6.0 100.0,6.0 100.0,6.0"], "as it does where it was the slowest before by chance");
  assert.deepEqual([ends.median.toFixed(2), ends.slowest.toFixed(2), uneven], ["0.60", "0.20", 50]);
  assert.match(trendWords(kernel, NOW), /; rank 1 1\.11× the median, seen from the report of /);
});

test("a kernel that is not slower has no moment, and a single point no line", () => {
  const { median, slowest, changed, uneven } = spark({ ...KERNEL, slower_since: null, trend: [0.002], slowest_trend: [0.003], slowest_ranks: [1], uneven_since: null }, [NOW], 100, 30);
  assert.deepEqual([median, slowest, changed, uneven], [[], [], null, null]);
});

test("a line that would lie on that of the median is left out", () => {
  const kernel = { ...KERNEL, trend: [0.002, 0.002, 0.002, 0.002], median: 0.002, slowest: 0.00203, slowest_trend: [0.00202, 0.00203, 0.00203, 0.00203], slowest_ranks: [0, 1, 1, 1] };
  const { slowest, others } = spark(kernel, POINTS, 100, 30);
  assert.deepEqual([slowest, others], [[], []]);
  assert.equal(spark({ ...kernel, slowest_trend: [0.00202, 0.00203, 0.0021, 0.0021] }, POINTS, 100, 30).slowest.length, 1);
});

test("labels of two lines keep a distance, and one line has its label at its end", () => {
  const kernel = { ...KERNEL, trend: [0.002, 0.002, 0.002, 0.002], median: 0.002, slowest: 0.0023, slowest_trend: [0.002, 0.002, 0.0023, 0.0023], slowest_ranks: [0, 0, 1, 1] };
  const { ends } = spark(kernel, POINTS, 100, 30);
  assert.ok(44 * (ends.median - ends.slowest) >= 14, "pixels of a trend that is 44 high");
  const alone = spark({ ...kernel, slowest: 0.00201, slowest_trend: kernel.trend }, POINTS, 100, 30);
  assert.equal(alone.ends.median, 1 - 0.002 / (1.25 * 0.00201));
});

test("names of one family are cut in their middle, so that they differ", () => {
  const [one, two] = ["f32f32_f32f32_f32_nt_n_tilesize32x32x8_execu~4ed1d424", "f32f32_f32f32_f32_nt_n_tilesize64x64x8_execu~bd11f0a7"].map((each) => cutMiddle(each, 24));
  assert.deepEqual([one, two], ["f32f32_f32f…cu~4ed1d424", "f32f32_f32f…cu~bd11f0a7"]);
  assert.equal(cutMiddle("FusedAdamMathFunctor", 24), "FusedAdamMathFunctor");
});

test("names of real kernels: what they are first, then what tells them apart, then the launch", () => {
  const read = (name: string) => Object.values(kernelName(name));
  assert.deepEqual(read("multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2, 2, 0>, plus<floa~2017490a<<<2,1,1 512,1,1>>>"), ["multi_tensor_apply_kernel", "BinaryOpListAlphaFunctor", "grid 2, block 512"]);
  assert.deepEqual(read("Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1><<<4,1,4 128,1,1>>>"), ["cutlass_80_simt_sgemm", "64x64_8x5_tn_align1", "grid 4×1×4, block 128"]);
  assert.deepEqual(read("reduce_kernel<512, 1, ReduceOp<float, MeanOps<float, float, float, float>, unsigned int, float, 4, 4>><<<1,1,1 512,1,1>>>"), ["reduce_kernel", "MeanOps", "grid 1, block 512"]);
  assert.deepEqual(read("sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execu~4ed1d424<<<8,8,1 64,1,1>>>"), ["sm80_xmma_gemm", "f32f32_f32f32_f32_nt_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execu~4ed1d424", "grid 8×8, block 64"]);
  assert.deepEqual(read("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>, true><<<16,2,32 128,1,1>>>"), ["flash_fwd_kernel", "Flash_fwd_kernel_traits<128, 128>, true", "grid 16×2×32, block 128"]);
  assert.deepEqual(read("aten::addmm[64,32x64]"), ["aten::addmm", "", "[64,32x64]"]);
  assert.deepEqual(read("memset"), ["memset", "", ""]);
});

test("the kernels that make a rank late, in seconds of its step, and how much of its lateness they explain", () => {
  const kernel = (name: string, share: number, slowest: number, slowest_rank = 3) => ({ ...KERNEL, name, ranks: 8, share, slowest, slowest_rank, median: 0.002, relative: 0.002 / slowest });
  const table = { compute: 0.1, step: 0.2, kernels: [kernel("gemm", 0.6, 0.003), kernel("softmax", 0.2, 0.003), kernel("copy", 0.1, 0.0021), kernel("tanh", 0.1, 0.004, 5)] };
  const lag = lagOf(3, table)!;
  assert.deepEqual(lag.kernels.map((each) => [each.kernel.name, each.seconds.toFixed(3)]), [["gemm", "0.030"], ["softmax", "0.010"]]);
  const words = (lateness: number | null) => lagWords(lag, lateness).replaceAll("\u2009", " ");
  assert.equal(words(0.041), "Rank 3 is slow in its kernels: gemm (+30 ms a step) and softmax (+10 ms) explain 40 of the 41 ms that the others wait for it");
  assert.match(words(0.04), / explain the 40 ms that the others wait for it$/);
  assert.match(words(0.039), / explain the 39 ms that the others wait for it$/);
  assert.match(words(1.5), / explain 40 ms of the 1\.50 s that the others wait for it$/);
  assert.equal(words(0.1), "Rank 3 is slow in its kernels: gemm (+30 ms a step) and softmax (+10 ms) explain 40 of the 100 ms that the others wait for it");
  assert.equal(words(null), "Rank 3 is slow in its kernels: gemm (+30 ms a step) and softmax (+10 ms) take longer than on the median rank");
  assert.deepEqual([lagOf(0, table), lagOf(3, { ...table, compute: null })], [null, null]);
  assert.equal(shareOfStep(table.kernels[0]!, table)!.toFixed(2), "0.30");
  assert.equal(shareOfStep(table.kernels[0]!, { compute: null, step: null }), null);
});

test("the trend in words", () => {
  assert.match(trendWords(KERNEL, NOW), /^2\u2009ms to 3\u2009ms, 1\.50× as long since /);
  assert.equal(trendWords({ ...KERNEL, slower_since: null, trend: [0.002, 0.002] }, NOW), "always 2\u2009ms");
  assert.equal(trendWords({ ...KERNEL, trend: [0.002] }, NOW), "one point so far");
});

test("those that became slower come first, the others keep their order", () => {
  const named = ["a", "b", "c"].map((name, i) => ({ ...KERNEL, name, slower_since: i === 2 ? NOW : null }));
  assert.deepEqual(slowerFirst(named).map(({ name }) => name), ["c", "a", "b"]);
});

test("names are shown without their shapes, of kernels and of operators", () => {
  assert.deepEqual(nameAndShape(KERNEL.name), ["gemm<float>", "<<<96,1,1 256,1,1>>>"]);
  assert.deepEqual(nameAndShape("aten::addmm[64,32x64]"), ["aten::addmm", "[64,32x64]"]);
  assert.deepEqual(nameAndShape("memset"), ["memset", ""]);
});

test("one sentence where nothing is wrong with the kernels, none where something is", () => {
  const even = { ...KERNEL, ranks: 8, relative: 0.98, slower_since: null };
  const slow = { rank: 3, cause: "data" as const };
  assert.equal(calmWords([even], slow), "The kernels of rank 3 are as fast as those of its peers: the cause is its input.");
  assert.match(calmWords([{ ...even, slower_since: NOW }], { ...slow, cause: "unexplained" }), /: the cause is elsewhere\.$/);
  assert.equal(calmWords([even], null), "No kernel takes longer than before, and no rank is much slower in one than the others.");
  assert.equal(calmWords([{ ...even, ranks: 1, relative: null }], null), "No kernel takes longer than before.");
  const uneven = { ...even, relative: 0.5, slowest_rank: 3 };
  assert.deepEqual([calmWords([uneven], slow), calmWords([{ ...even, slower_since: NOW }], null)], ["", ""]);
  assert.match(calmWords([{ ...uneven, slowest_rank: 5 }], slow), /^The kernels of rank 3 are as fast/, "another rank is slow in them");
});

test("a rank that is the slowest in all kernels from one report on stands once", () => {
  const of = (facts: Partial<KernelView>) => ({ ...KERNEL, ranks: 8, relative: 0.68, slowest_rank: 3, uneven_since: NOW, ...facts });
  assert.equal(slowestInAll([of({}), of({})])?.slowest_rank, 3);
  for (const other of [{ slowest_rank: 4 }, { relative: 0.95 }, { uneven_since: NOW - 15 }]) assert.equal(slowestInAll([of({}), of(other)]), null);
  assert.deepEqual([slowestInAll([of({})]), slowestInAll([])], [null, null]);
});

test("one rank that is slow in all kernels alike: its device is slow, not one kernel", () => {
  const of = (slowest: number) => ({ ...KERNEL, ranks: 8, median: 1, slowest, relative: 0.9 / slowest, slowest_rank: 21, uneven_since: NOW });
  const throttled = { rank: 21, gpu: "GPU 5", reasons: [], words: "thermal slowdown by the hardware", since: NOW, readings: "1.20 of 1.98 GHz" };
  const three = [of(1.45), of(1.47), of(1.46)];
  assert.equal(alikeWords(three, null), "On rank 21 all 3 kernels take 1.45 to 1.47 times the median of all ranks: its device is slow, not one kernel");
  assert.equal(alikeWords(three, throttled), "On rank 21 all 3 kernels take 1.45 to 1.47 times the median of all ranks: GPU 5 is slow, not one kernel, throttled at 1.20 of 1.98 GHz");
  assert.match(alikeWords(three, { ...throttled, rank: 3 }), /: its device is slow/, "the GPU of another rank");
  assert.match(alikeWords([of(1.46), of(1.46)], null), /^On rank 21 both kernels take 1\.46 times /);
  assert.deepEqual([alikeWords([of(1.46), of(2)], null), alikeWords([of(1.46)], null), alikeWords([], null)], ["", "", ""]);
});

test("lines of other ranks that lie on the median are not drawn", () => {
  const kernel = { ...KERNEL, trend: [0.002, 0.002, 0.002, 0.002], median: 0.002, slowest: 0.004, slowest_ranks: [0, 0, 1, 1] };
  const others = (second: number) => spark({ ...kernel, slowest_trend: [0.002, second, 0.004, 0.004] }, POINTS, 100, 30).others.length;
  assert.deepEqual([others(0.00202), others(0.0022)], [0, 1]);
});

test("calls in a step, and by how much they make it longer", () => {
  const gemm = { ...KERNEL, ranks: 8, share: 0.5, median: 0.002, slowest: 0.003, relative: 0.6 };
  const calls = callsOf(gemm, { compute: 0.1 })!;
  assert.ok(Math.abs(calls * (gemm.slowest - gemm.median) - moreOf(gemm, { compute: 0.1 })!) < 1e-9, "the figures of a row agree");
  assert.deepEqual([callsWords(calls), callsWords(0.52), callsWords(4), callsWords(1234.4), callsWords(null)], ["25", "0.5", "4", "1,234", "–"]);
  assert.deepEqual([callsOf(gemm, { compute: null }), moreOf(gemm, { compute: null }), moreOf({ ...gemm, relative: 0.95 }, { compute: 0.1 })], [null, null, null]);
});

test("a sum is that of its addends as shown", () => {
  const kernels = [0.02736, 0.01886, 0.00934, 0.00001].map((seconds, i) => ({ kernel: { ...KERNEL, name: `k${i}` }, seconds }));
  const words = lagWords({ rank: 21, kernels, seconds: 0.0556 }, 0.06).replaceAll("\u2009", " ");
  assert.match(words, /k0 \(\+27\.4 ms a step\), k1 \(\+18\.9 ms\) and k2 \(\+9\.34 ms\) explain 55\.6 of the 60 ms/);
});

test("medians that are as they were have not changed", () => {
  const medians = [[1, null], [1.01, null], [null, null], [1.05, null], [1.01, NOW]] as const;
  assert.deepEqual(medians.map(([change, slower_since]) => hasChanged({ change, slower_since })), [false, false, false, true, true]);
});

test("short durations", () => {
  const found = [1.25, 0.00124, 0.0009998, 95.04e-6, 320e-9, 0.4567, null].map((seconds) => fine(seconds).replace("\u2009", " "));
  assert.deepEqual(found, ["1.25 s", "1.24 ms", "1 ms", "95 µs", "320 ns", "457 ms", "–"]);
});

test("the rank that loses most is named, with its kernel and how many times the median that takes", () => {
  const kernel = (name: string, slowest_rank: number, share: number, slowest: number, relative: number | null) =>
    ({ ...KERNEL, name, slowest_rank, share, slowest, relative, ranks: 8, median: 0.005 });
  const even = kernel("memset", 2, 0.1, 0.0052, 0.95);
  const found = slowRanksOf([kernel("gemm<float>", 3, 0.5, 0.0055, 0.88), kernel("all_gather<<<1>>>", 3, 0.3, 0.009, 0.5), kernel("copy", 6, 0.1, 0.006, 0.8), even]);
  assert.deepEqual(found.map(({ rank, share }) => [rank, share]), [[3, 0.8], [6, 0.1]]);
  assert.equal(slowRankWords(found[0]!), "Rank 3's all_gather kernel takes 1.80 times the median of all ranks");
  assert.equal(slowRankFigures(found[0]!), "all_gather kernel takes 1.80 times the median of all ranks");
  assert.deepEqual(slowRanksOf([even, { ...even, relative: null }]), []);
  assert.deepEqual([isUneven(even), isUneven({ ...even, relative: 0.89 })], [false, true]);
});

test("of two ranks the other one is the reference: a median over both would contain the slow one", () => {
  const two = { ...KERNEL, relative: 0.5, slowest: 0.004, median: 0.003 };
  assert.equal(ratioOfSlowest(two), 2);
  assert.match(slowRankWords(slowRanksOf([two])[0]!), /takes 2\.00 times that of the other rank$/);
});

test("the short name of a kernel has no namespace, template arguments or shapes", () => {
  assert.equal(shortName("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor<float>>(int)<<<8,1,1 128,1,1>>>"), "vectorized_elementwise_kernel");
  assert.equal(shortName("aten::addmm[64,32x64]"), "addmm");
  assert.equal(shortName("a".repeat(50)).length, 32);
});

test("which ranks time kernels now, and that none of this attempt does", () => {
  const cupti = { source: "cupti", reason: "", ranks: 31 };
  const none = { source: "none", reason: "no CUPTI.", ranks: 1 };
  assert.equal(timedWords({ at: NOW, sources: [cupti] }, false, NOW), "Timed by CUPTI on 31 ranks.");
  assert.equal(timedWords({ at: NOW, sources: [cupti, none] }, false, NOW), "Timed by CUPTI on 31 ranks; 1 rank has none (no CUPTI).");
  assert.match(timedWords({ at: NOW, sources: [] }, false, NOW), /^These are of the last report, at \d\d:\d\d:\d\d: no rank of this attempt has reported timings yet\.$/);
  assert.match(timedWords({ at: NOW, sources: [{ ...none, ranks: 2 }] }, false, NOW), /: 2 ranks have none \(no CUPTI\)\.$/);
  assert.match(timedWords({ at: NOW, sources: [] }, true, NOW), /^As of the last report, at /);
});

test("a rank that loses next to nothing of a step in its kernels does not stand out in them", () => {
  const of = (slowest_rank: number, share: number): KernelView => ({ ...KERNEL, ranks: 8, slowest_rank, share, median: 0.002, slowest: 0.003, relative: 0.6, uneven_since: NOW });
  const table = { kernels: [of(3, 0.02), of(3, 0.03), of(5, 0.02)], compute: 0.1, step: 0.2, points: POINTS } as unknown as KernelsView;
  assert.deepEqual(weighed(table).kernels.map(isUneven), [true, true, false], "rank 3 loses 2.5 of 200 ms in both together, rank 5 one");
  assert.deepEqual(weighed({ ...table, step: null }).kernels.map(isUneven), [true, true, true], "what it costs is not known");
});
