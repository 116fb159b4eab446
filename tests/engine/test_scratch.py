from tests.processes import *
def test_time(trainings):
    t=time.time()
    r=trainings.trained("train.duration=30 steps"); print(time.time()-t)
    t=time.time()
    r=trainings.trained("train.duration=30 steps", "evaluate.every=10 steps"); print(time.time()-t)
    print(losses(r)); print(r.summary()); print(events(r,"evaluation"))
    t=time.time()
    for n in (2,3):
        r=trainings.new("train.duration=10 steps"); assert trainings.train_together(r,n)==0; print(time.time()-t)
    c=trainings.killed_after(r,5); assert trainings.train_together(c,3,True)==0
    a,b=losses(r,5),losses(c,5); print(a,b, same_bits(tensors(r),tensors(c)), {k: (tensors(r)[k]-tensors(c)[k]).abs().max().item() for k in tensors(r)})
