; y = max(x, 0), in LLVM IR as another compiler would hand it over. Both branches take this file: one kernel, two images.

target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare float @llvm.maxnum.f32(float, float)

define internal i64 @grid_first() alwaysinline {
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %size = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block.wide = zext i32 %block to i64
  %size.wide = zext i32 %size to i64
  %thread.wide = zext i32 %thread to i64
  %start = mul nuw i64 %block.wide, %size.wide
  %first = add nuw i64 %start, %thread.wide
  ret i64 %first
}

define internal i64 @grid_stride() alwaysinline {
  %blocks = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %size = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %blocks.wide = zext i32 %blocks to i64
  %size.wide = zext i32 %size to i64
  %stride = mul nuw i64 %blocks.wide, %size.wide
  ret i64 %stride
}

define ptx_kernel void @relu(ptr addrspace(1) readonly %x, ptr addrspace(1) writeonly %y, i64 %count) {
entry:
  %first = call i64 @grid_first()
  %stride = call i64 @grid_stride()
  br label %test

test:
  %i = phi i64 [ %first, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %done

body:
  %from = getelementptr inbounds float, ptr addrspace(1) %x, i64 %i
  %value = load float, ptr addrspace(1) %from, align 4
  %positive = call float @llvm.maxnum.f32(float %value, float 0.0)
  %to = getelementptr inbounds float, ptr addrspace(1) %y, i64 %i
  store float %positive, ptr addrspace(1) %to, align 4
  %next = add nuw i64 %i, %stride
  br label %test

done:
  ret void
}
